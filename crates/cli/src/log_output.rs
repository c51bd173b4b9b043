//! Where the programs' logs go: standard error, which is a file where a process was started in the background.

use std::fmt::Write;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt, registry};

/// Starts the log of this process. `filter`: what goes into it. Called once.
pub fn start(filter: EnvFilter) {
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    registry().with(filter).with(WithoutLateReplies).with(lines).init();
}

/// Leaves out what the FUSE library says when an answer finds its request gone (ENOENT): the program that had asked was
/// interrupted meanwhile, which is no fault and happens as often as programs are. Answers that fail otherwise are logged.
struct WithoutLateReplies;

impl<S: Subscriber> Layer<S> for WithoutLateReplies {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let mut message = Message::default();
        event.record(&mut message);
        !is_late_reply(&message.0)
    }
}

fn is_late_reply(message: &str) -> bool {
    message.starts_with("Failed to send FUSE reply: ") && message.ends_with("(os error 2)")
}

/// The text of an event.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::io;
    use std::sync::{Arc, Mutex};

    /// What is logged while `work` runs.
    fn logged(work: impl FnOnce()) -> String {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();
        let layer = fmt::layer().with_ansi(false).with_writer(move || Sink(sink.clone()));
        tracing::subscriber::with_default(registry().with(WithoutLateReplies).with(layer), work);
        let lines = lines.lock().unwrap();
        String::from_utf8(lines.clone()).unwrap()
    }

    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn only_answers_whose_request_is_gone_are_left_out() {
        let failed = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        let text = logged(|| {
            tracing::error!("Failed to send FUSE reply: {}", failed(Errno::NOENT));
            tracing::error!("Failed to send FUSE reply: {}", failed(Errno::INVAL));
            tracing::error!("cannot read x: {}", failed(Errno::NOENT));
        });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines[0].ends_with("(os error 22)") && lines[1].contains("cannot read x"),
            "{text}"
        );
    }
}
