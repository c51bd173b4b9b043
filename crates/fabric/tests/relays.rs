//! Somebody between two peers who does not know the secret: whatever he does to what passes through him is noticed, and nothing of
//! it is done.

use crate::support::{Events, TIMEOUT, at, block_on, bytes_of, identity, pattern};
use polvo_fabric::{
    Access, Address, Buffer, Event, FabricError, Listener, Memory, MemoryRegions, QueuePair, Role, Security, Verb,
    connect,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

const LEN: usize = 300_000;

/// What becomes of the bytes of one direction, as they come.
type Tamper = Rc<RefCell<dyn FnMut(&mut Vec<u8>)>>;

fn honest() -> Tamper {
    Rc::new(RefCell::new(|_: &mut Vec<u8>| ()))
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, tamper: Tamper) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(got @ 1..) = from.read(&mut bytes).await {
        let mut passed = bytes[..got].to_vec();
        (tamper.borrow_mut())(&mut passed);
        if to.write_all(&passed).await.is_err() {
            return;
        }
    }
}

struct Scene {
    client: QueuePair,
    server: QueuePair,
    buffer: Arc<Buffer>,
    key: polvo_fabric::RemoteKey,
}

/// A client that reaches a server by way of a relay, and memory of the server's.
async fn scene(security: Security, to_server: Tamper, to_client: Tamper) -> Scene {
    let who = |role| polvo_fabric::Identity {
        security,
        ..identity(role)
    };
    let regions = MemoryRegions::new();
    let buffer = Buffer::new(LEN);
    buffer.write(0, &pattern(LEN, 1));
    let key = regions.register(Memory::Buffer(buffer.clone()), 0, LEN as u64, Access::ALL);
    let here = Address::Tcp("127.0.0.1:0".into());
    let mut listener = Listener::bind(&here, &who(Role::Node(1)), &regions).await.unwrap();
    let Address::Tcp(server) = listener.local_addr() else {
        unreachable!()
    };
    let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::Tcp(relay.local_addr().unwrap().to_string());
    tokio::task::spawn_local(async move {
        let (near, _) = relay.accept().await.unwrap();
        let far = TcpStream::connect(server).await.unwrap();
        let ((from_client, to), (from, to_far)) = (near.into_split(), far.into_split());
        tokio::join!(pass(from_client, to_far, to_server), pass(from, to, to_client));
    });
    let (me, own) = (who(Role::Client), MemoryRegions::new());
    let (client, server) = tokio::join!(connect(&address, &me, &own, TIMEOUT), listener.accept());
    Scene {
        client: client.unwrap(),
        server: server.unwrap(),
        buffer,
        key,
    }
}

/// Flips the bit at this place of what comes from now on.
fn flip(bit: usize) -> (Tamper, Rc<RefCell<bool>>) {
    let (armed, mut passed) = (Rc::new(RefCell::new(false)), 0);
    let is_armed = armed.clone();
    let tamper = move |bytes: &mut Vec<u8>| {
        if !*is_armed.borrow() {
            return;
        }
        if let Some(byte) = (bit / 8usize).checked_sub(passed).and_then(|at| bytes.get_mut(at)) {
            *byte ^= 1 << (bit % 8);
        }
        passed += bytes.len();
    };
    (Rc::new(RefCell::new(tamper)), armed)
}

async fn write(scene: &Scene, bytes: &[u8]) -> Result<(), FabricError> {
    let to = at(scene.key, 0);
    scene.client.execute(&mut [Verb::Write { to, bytes }]).await
}

async fn read(scene: &Scene, len: usize) -> Result<Vec<u8>, FabricError> {
    let mut into = vec![0; len];
    let from = at(scene.key, 0);
    scene
        .client
        .execute(&mut [Verb::Read { from, into: &mut into }])
        .await?;
    Ok(into)
}

/// Bits in the length of a record (one that makes it an impossible one; others make who receives it wait for more, for as long as who
/// has sent it waits for an answer), in the header of a frame, in a small payload, in a large one, near its end.
const BITS: [usize; 7] = [31, 33, 8 * 20, 8 * 60 + 3, 8 * 5_000, 8 * 40_000 + 7, 8 * 90_000];

/// Bits to flip, and how many bytes are written or read: each bit lies in what is sent for them.
fn flips() -> impl Iterator<Item = (usize, usize)> {
    const HEADERS: usize = 4 + 48;
    let of_each = |bit| [100, 5000, 100_000].map(|len| (bit, len));
    BITS.into_iter()
        .flat_map(of_each)
        .filter(|(bit, len)| bit / 8 < len + HEADERS)
}

#[test]
fn a_flipped_bit_of_what_is_written_ends_the_connection_and_nothing_is_written() {
    for (bit, len) in flips() {
        block_on(async {
            let (tamper, armed) = flip(bit);
            let scene = scene(Security::Auth, tamper, honest()).await;
            let _events = Events::drive(&scene.server);
            write(&scene, b"before").await.unwrap();
            *armed.borrow_mut() = true;
            let before = bytes_of(&scene.buffer, 0, LEN);
            let written = write(&scene, &pattern(len, 2)).await;
            assert!(
                matches!(written, Err(FabricError::Disconnected { .. })),
                "bit {bit} of {len} bytes: {written:?}"
            );
            // what came in records before the one that was changed may be there, as after any connection that is lost
            let (after, wanted) = (bytes_of(&scene.buffer, 0, LEN), pattern(len, 2));
            let sound = after.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
            assert!(after[sound..] == before[sound..], "bit {bit} of {len} bytes");
            assert!(sound * 8 <= bit, "bit {bit} of {len} bytes: {sound} bytes are there");
        });
    }
}

#[test]
fn a_flipped_bit_of_what_is_read_ends_the_connection() {
    for (bit, len) in flips() {
        block_on(async {
            let (tamper, armed) = flip(bit);
            let scene = scene(Security::Encrypt, honest(), tamper).await;
            let _events = Events::drive(&scene.server);
            assert!(read(&scene, len).await.unwrap() == pattern(LEN, 1)[..len]);
            *armed.borrow_mut() = true;
            let found = read(&scene, len).await;
            assert!(
                matches!(found, Err(FabricError::Disconnected { .. })),
                "bit {bit} of {len} bytes: {found:?}"
            );
        });
    }
}

#[test]
fn what_is_repeated_or_left_out_ends_the_connection() {
    for repeats in [true, false] {
        block_on(async {
            let armed = Rc::new(RefCell::new(false));
            let is_armed = armed.clone();
            let tamper = move |bytes: &mut Vec<u8>| {
                if is_armed.replace(false) {
                    let body = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
                    let record = bytes[..4 + body + 16].to_vec();
                    bytes.splice(
                        ..if repeats { 0 } else { record.len() },
                        if repeats { record } else { Vec::new() },
                    );
                }
            };
            let scene = scene(Security::Auth, Rc::new(RefCell::new(tamper)), honest()).await;
            let events = Events::drive(&scene.server);
            let send = async |bytes: &[u8]| scene.client.execute_unsignaled(&mut [Verb::Send { bytes }]).await;
            send(b"one").await.unwrap();
            read(&scene, 1).await.unwrap();
            *armed.borrow_mut() = true;
            send(b"two").await.unwrap();
            // what comes next is noticed to be out of turn, and so is what was repeated
            let next = read(&scene, 1).await;
            assert!(matches!(next, Err(FabricError::Disconnected { .. })), "{next:?}");
            let mut sent: Vec<Event> = Vec::new();
            while let Some(event) = events.next().await {
                sent.push(event);
            }
            let message = |bytes: &[u8]| Event::Message(bytes.to_vec());
            match repeats {
                true => assert_eq!(sent, [message(b"one"), message(b"two")], "each once"),
                false => assert_eq!(sent, [message(b"one")]),
            }
        });
    }
}

/// What the others are there for: without records nobody notices.
#[test]
fn without_security_what_is_read_and_written_can_be_changed() {
    block_on(async {
        let (tamper, armed) = flip(8 * 1000);
        let scene = scene(Security::None, tamper, honest()).await;
        let _events = Events::drive(&scene.server);
        write(&scene, b"before").await.unwrap();
        *armed.borrow_mut() = true;
        write(&scene, &pattern(5000, 2)).await.unwrap();
        assert!(bytes_of(&scene.buffer, 0, 5000) != pattern(5000, 2));
    });
}

#[test]
fn only_what_is_encrypted_cannot_be_read_on_its_way() {
    for (security, is_readable) in [(Security::None, true), (Security::Encrypt, false)] {
        block_on(async {
            let seen = Rc::new(RefCell::new(Vec::new()));
            let listening = seen.clone();
            let listen = move |bytes: &mut Vec<u8>| listening.borrow_mut().extend_from_slice(bytes);
            let scene = scene(security, Rc::new(RefCell::new(listen)), honest()).await;
            let _events = Events::drive(&scene.server);
            let plain = b"nobody else is to know what is written here";
            write(&scene, plain).await.unwrap();
            let found = seen.borrow().windows(plain.len()).any(|bytes| bytes == plain);
            assert_eq!(found, is_readable, "{security:?}");
        });
    }
}
