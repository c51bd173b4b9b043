//! libfabric's tcp provider, by its own program `fi_pingpong` (Debian: libfabric-bin).

use crate::samples::Samples;
use std::io;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Bound of one measurement.
const LONGEST: Duration = Duration::from_secs(60);

/// GB/s of messages of 1 MiB that go there and back, one at a time, `total` bytes a round; why there is no figure, in words.
pub fn stream(rounds: usize, total: u64) -> Result<Samples, String> {
    (0..rounds)
        .map(|_| round(total))
        .collect::<Result<Vec<f64>, String>>()
        .map(Samples::new)
}

fn program(port: u16, messages: u64) -> Command {
    let mut program = Command::new("fi_pingpong");
    let (size, messages, port) = (MIB.to_string(), messages.to_string(), port.to_string());
    program.args(["-p", "tcp", "-e", "rdm", "-S", &size, "-I", &messages, "-B", &port]);
    program
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    program
}

/// A child that does not outlive its measurement.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn round(total: u64) -> Result<f64, String> {
    // there and back: two transfers a message
    let messages = (total / MIB / 2).max(10);
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map_err(|why| why.to_string())?
        .port();
    let _server = Running(program(port, messages).spawn().map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => "fi_pingpong is not installed (libfabric-bin)".to_owned(),
        _ => why.to_string(),
    })?);
    let begin = Instant::now();
    loop {
        // the server needs a moment until it listens; its client does not wait for it
        let port = port.to_string();
        let client = program(0, messages)
            .args(["-P", &port, "127.0.0.1"])
            .output()
            .map_err(|why| why.to_string())?;
        if client.status.success() {
            return parse(&String::from_utf8_lossy(&client.stdout))
                .ok_or_else(|| "fi_pingpong says nothing".to_owned());
        }
        if begin.elapsed() > LONGEST {
            return Err("fi_pingpong does not come to an end".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The rate in the table that it prints: `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`.
fn parse(table: &str) -> Option<f64> {
    let (head, values) = table.lines().zip(table.lines().skip(1)).last()?;
    let column = head.split_whitespace().position(|name| name == "MB/sec")?;
    let rate: f64 = values.split_whitespace().nth(column)?.parse().ok()?;
    Some(rate / 1000.0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_rate_is_read_from_the_table() {
        let table = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                     1m      10      =10      20m         0.01s   4123.45     254.31       0.00\n";
        assert_eq!(super::parse(table), Some(4.12345));
        assert_eq!(super::parse(""), None);
        assert_eq!(super::parse("one line"), None);
    }
}
