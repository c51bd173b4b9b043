//! The threads that read requests and carry them out.
//!
//! ```text
//!             +------ fewer readers wait than the target --------+
//!             v                                                  |
//!     reading (in `receive`) --- a request ---> serving ---------+---> parked, until woken
//!                                                  |
//!                                          `will_wait`: nobody reads any more? then one is woken, or started
//! ```
//!
//! Mostly one thread does everything: the *hot* reader. What it costs to ask and be answered is two context switches, and those
//! are cheap only on one CPU; many waiting readers would be woken in turn, all over the machine. More read when
//!
//! - a handler is going to wait ([`will_wait`]),
//! - requests wait most of the time although the readers are busy (`supervisor`),
//! - nobody reads and nothing is answered for a while: whatever the handlers do, the mount goes on, and the kernel's requests to
//!   forget and to interrupt are read (`supervisor`).
//!
//! Invariants: whoever parks has seen, under the lock of the state, that somebody else reads; whoever stops reading in order to wait
//! looks, after that, whether nobody does. So as long as a thread is to be had, somebody reads or is about to. A request costs
//! one `read`, one `writev` and a few atomic operations.

use crate::FileSystem;
use crate::abi::OutHeader;
use crate::filesystem::{MOST_WRITTEN, serve};
use crate::request::{Malformed, Request};
use crate::supervisor;
use crate::transport::{Device, Transport};
use crate::upcalls::Upcalls;
use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use std::cell::OnceCell;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};
use zerocopy::IntoBytes;

/// Room for a write, and what comes before its data.
const BUFFER: usize = MOST_WRITTEN as usize + 4096;

/// `Readers::word`: threads in `receive` below, requests received above.
const SERVED: u64 = 1 << 16;

thread_local! {
    /// On a thread that reads requests: those that it belongs to.
    static READERS: OnceCell<Arc<Readers>> = const { OnceCell::new() };
}

/// Says that the handler which runs on this thread is about to wait: for another machine, a lock, a device. Somebody else then
/// reads what the kernel asks meanwhile. Nothing happens on threads that serve no requests.
pub fn will_wait() {
    READERS.with(|readers| {
        let Some(readers) = readers.get() else { return };
        readers.waits.fetch_add(1, Ordering::Relaxed);
        if readers.reading() == 0 {
            // It is like this with each request, or never; `supervisor` looks later.
            readers.target.fetch_max(2, Ordering::Relaxed);
            readers.wake();
        }
    });
}

/// Starts a thread that runs on any CPU. One that a handler starts by itself stays on its reader's.
///
/// # Errors
/// The system has no thread to give.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let anywhere = READERS.with(|readers| readers.get().map(|readers| readers.anywhere));
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        if let Some(anywhere) = anywhere {
            run_on(None, &anywhere);
        }
        body();
    })
}

/// What the kernel allows is not worth an error: a thread is slower at worst.
pub(crate) fn run_on(thread: Option<Pid>, cpus: &CpuSet) {
    if let Err(errno) = sched_setaffinity(thread, cpus) {
        tracing::debug!(%errno, "a thread stays on its CPUs");
    }
}

/// What a reader does from its start to its end.
type Body = Arc<dyn Fn(&Arc<Readers>) + Send + Sync>;

/// The readers of one mount.
pub(crate) struct Readers {
    /// See [`SERVED`].
    word: AtomicU64,
    /// How often handlers have waited.
    waits: AtomicU64,
    /// So many may wait in `receive`; the others park.
    target: AtomicUsize,
    /// The thread whose request was received last, as the kernel names it.
    last_caller: AtomicU32,
    /// The supervisor sleeps until a request comes.
    pub(crate) supervisor_asleep: AtomicBool,
    supervisor: OnceLock<Thread>,
    state: Mutex<State>,
    woken: Condvar,
    /// Most readers.
    most: usize,
    upcalls: Arc<Upcalls>,
    /// The CPUs that this process may use.
    pub(crate) anywhere: CpuSet,
}

struct State {
    /// `None`: it has ended.
    body: Option<Body>,
    threads: Vec<JoinHandle<()>>,
    /// Of all readers.
    ids: Vec<Pid>,
    /// The CPU that all of them are on, if it is one.
    cpu: Option<usize>,
    parked: usize,
    /// Of the parked ones, those that go on as soon as they run.
    called: usize,
    error: Option<Errno>,
}

impl State {
    /// Who parks is a reader, and who is called is parked.
    fn check(&self) {
        assert!(
            self.called <= self.parked && self.parked <= self.ids.len(),
            "{} called of {} parked of {} readers",
            self.called,
            self.parked,
            self.ids.len()
        );
    }
}

impl Readers {
    /// Starts serving a file system; the first reader runs when this returns.
    pub(crate) fn start(
        filesystem: impl FileSystem,
        transport: Arc<dyn Transport>,
        most: NonZeroUsize,
        upcalls: Arc<Upcalls>,
    ) -> io::Result<Arc<Readers>> {
        let readers = Arc::new(Readers {
            word: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            target: AtomicUsize::new(1),
            last_caller: AtomicU32::new(0),
            supervisor_asleep: AtomicBool::new(false),
            supervisor: OnceLock::new(),
            state: Mutex::new(State {
                body: None,
                threads: Vec::new(),
                ids: Vec::new(),
                cpu: None,
                parked: 0,
                called: 0,
                error: None,
            }),
            woken: Condvar::new(),
            most: most.get(),
            upcalls,
            anywhere: sched_getaffinity(None)?,
        });
        let (device, supervised) = (transport.clone(), readers.clone());
        let supervisor = spawn("polvo-fuse-watch", move || supervisor::run(&supervised, &*device))?;
        readers.supervisor.get_or_init(|| supervisor.thread().clone());
        let mut state = readers.state();
        state.threads.push(supervisor);
        state.body = Some(body(filesystem, transport));
        let started = readers.start_one(&mut state);
        drop(state);
        started.inspect_err(|_| readers.end(None))?;
        Ok(readers)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many threads wait for a request.
    pub(crate) fn reading(&self) -> usize {
        (self.word.load(Ordering::SeqCst) % SERVED) as usize
    }

    /// How many requests were received so far.
    pub(crate) fn served(&self) -> u64 {
        self.word.load(Ordering::SeqCst) / SERVED
    }

    /// How often handlers have waited so far.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    pub(crate) fn target(&self) -> usize {
        let target = self.target.load(Ordering::Relaxed);
        assert!(target > 0, "somebody is to read");
        target
    }

    pub(crate) fn set_target(&self, target: usize) {
        self.target.store(target.clamp(1, self.most), Ordering::Relaxed);
    }

    pub(crate) fn last_caller(&self) -> u32 {
        self.last_caller.load(Ordering::Relaxed)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state().body.is_none()
    }

    /// One more reads, if one can be had.
    pub(crate) fn wake(self: &Arc<Self>) {
        let mut state = self.state();
        if state.parked > state.called {
            state.called += 1;
            self.woken.notify_one();
            state.check();
        } else if let Err(error) = self.start_one(&mut state) {
            tracing::warn!(%error, "no thread to serve the kernel on");
        }
    }

    fn start_one(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let Some(body) = state.body.clone().filter(|_| state.ids.len() < self.most) else {
            return Ok(());
        };
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let readers = self.clone();
        state.threads.push(spawn("polvo-fuse", move || {
            let _ = ready.send(gettid());
            body(&readers);
        })?);
        state.ids.extend(is_ready.recv());
        assert!(state.ids.len() <= self.most, "{} readers", state.ids.len());
        state.check();
        Ok(())
    }

    /// Has all readers run on one CPU, or anywhere.
    pub(crate) fn gather(&self, cpu: Option<usize>) {
        let mut state = self.state();
        let cpu = cpu.filter(|cpu| *cpu < CpuSet::MAX_CPU && self.anywhere.is_set(*cpu));
        if state.cpu == cpu {
            return;
        }
        let mut cpus = self.anywhere;
        if let Some(cpu) = cpu {
            cpus.clear();
            cpus.set(cpu);
        }
        state.cpu = cpu;
        for id in &state.ids {
            run_on(Some(*id), &cpus);
        }
    }

    /// Receives a request; its length.
    fn receive(&self, transport: &dyn Transport, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.word.fetch_add(1, Ordering::SeqCst);
        let received = transport.receive(buffer);
        let before = self.word.fetch_add(SERVED - 1, Ordering::SeqCst);
        debug_assert!(!before.is_multiple_of(SERVED), "it was counted");
        if self.supervisor_asleep.load(Ordering::SeqCst) && self.supervisor_asleep.swap(false, Ordering::SeqCst) {
            self.supervisor.get().inspect(|supervisor| supervisor.unpark());
        }
        received
    }

    /// Waits while enough others read.
    fn park_if_enough_read(&self) {
        if self.reading() < self.target() {
            return;
        }
        let mut state = self.state();
        if self.reading() < self.target() || state.body.is_none() {
            return;
        }
        state.parked += 1;
        state.check();
        while state.called == 0 && state.body.is_some() {
            state = self.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.called = state.called.saturating_sub(1);
        state.parked -= 1;
        state.check();
    }

    fn end(&self, error: Option<Errno>) {
        let mut state = self.state();
        let body = state.body.take();
        state.error = state.error.or(error);
        drop(state);
        self.woken.notify_all();
        self.supervisor.get().inspect(|supervisor| supervisor.unpark());
        drop(body); // and the file system with it, unless others still serve requests
    }

    /// Waits until all threads have ended.
    pub(crate) fn join(&self) -> io::Result<()> {
        loop {
            let Some(thread) = self.state().threads.pop() else {
                return self.state().error.map_or(Ok(()), |errno| Err(errno.into()));
            };
            if thread.join().is_err() {
                return Err(io::Error::other("a thread of the mount panicked"));
            }
        }
    }
}

/// A reader's way through the picture above.
fn body(filesystem: impl FileSystem, transport: Arc<dyn Transport>) -> Body {
    let filesystem = Arc::new(filesystem);
    Arc::new(move |readers| {
        // A queue of its own for what it works on; the common one will do.
        let transport: Arc<dyn Transport> = match Device::another(transport.device()) {
            Ok(device) => Arc::new(device),
            Err(_) => transport.clone(),
        };
        READERS.with(|own| drop(own.set(readers.clone())));
        let mut buffer = vec![0u64; BUFFER / size_of::<u64>()];
        let buffer = buffer.as_mut_bytes();
        let ended = loop {
            match readers.receive(&*transport, buffer) {
                Ok(len) => serve_bytes(&*filesystem, readers, &transport, &buffer[..len]),
                // NOENT: whoever asked has been killed while the request was handed over.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
                Err(Errno::NODEV | Errno::CONNABORTED) => break None,
                Err(errno) => break Some(errno),
            }
            readers.park_if_enough_read();
        };
        readers.end(ended);
    })
}

/// Carries out one request. A handler that panics is as good as one that fails.
fn serve_bytes(filesystem: &impl FileSystem, readers: &Readers, transport: &Arc<dyn Transport>, bytes: &[u8]) {
    match Request::decode(bytes) {
        Ok(request) => {
            readers.last_caller.store(request.header.pid, Ordering::Relaxed);
            let opcode = request.header.opcode;
            readers.upcalls.count(opcode);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| serve(filesystem, request, transport))) {
                let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                let text = text.unwrap_or_default();
                tracing::error!(opcode, panic = text, "a request panicked; answered EIO");
            }
        }
        Err(Malformed::Header) => tracing::error!(len = bytes.len(), "what the kernel sent is no request"),
        Err(Malformed::Operation { unique, opcode }) => {
            tracing::error!(opcode, "the kernel's request is malformed; answered EIO");
            let header = OutHeader {
                len: size_of::<OutHeader>() as u32,
                error: -Errno::IO.raw_os_error(),
                unique,
            };
            let _ = transport.send(&header, &[]);
        }
    }
}
