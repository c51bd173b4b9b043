//! What clients asked and were told, in order.

use crate::operation::{Operation, Outcome, leaves_open};
use std::cell::{Cell, RefCell};
use std::fmt::Write;
use std::time::Duration;
use tokio::time::Instant;

/// One operation of one client.
#[derive(Clone, Debug)]
pub struct Record {
    /// Who.
    pub client: String,
    /// What.
    pub operation: Operation,
    /// Its place among all invocations and responses of the run.
    pub invoked: u64,
    /// Place of the response; `None` when the client heard nothing or not enough: it may take effect at any time after
    /// its invocation, or never.
    pub returned: Option<u64>,
    /// What the client was told, if anything.
    pub outcome: Option<Outcome>,
    /// When it began, since the beginning of the run.
    pub began: Duration,
    /// How long it took, once it is over.
    pub took: Duration,
}

impl std::fmt::Display for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let returned = self.returned.map_or("?".to_string(), |at| at.to_string());
        write!(
            f,
            "[{}..{returned}] {}: {} -> ",
            self.invoked, self.client, self.operation
        )?;
        match &self.outcome {
            None => write!(f, "never answered"),
            Some(Ok(answer)) => write!(f, "{answer}"),
            Some(Err(error)) => write!(f, "{error}"),
        }
    }
}

#[derive(Default)]
struct State {
    records: Vec<Record>,
    events: u64,
    trace: Vec<String>,
}

thread_local! {
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// How long the run that this thread simulates has gone on.
pub fn now() -> Duration {
    BEGAN.get().map_or(Duration::ZERO, |began| began.elapsed())
}

/// The history of a run, as it is being made.
pub struct History {
    state: RefCell<State>,
    start: Instant,
}

impl History {
    /// An empty one; the trace counts time from now.
    pub fn new() -> History {
        let start = Instant::now();
        BEGAN.set(Some(start));
        History {
            state: RefCell::default(),
            start,
        }
    }

    /// A client begins an operation.
    pub fn invoke(&self, client: &str, operation: Operation) -> usize {
        let mut state = self.state.borrow_mut();
        state.events += 1;
        let invoked = state.events;
        state.records.push(Record {
            client: client.to_string(),
            operation,
            invoked,
            returned: None,
            outcome: None,
            began: self.start.elapsed(),
            took: Duration::ZERO,
        });
        state.records.len() - 1
    }

    /// The operation has returned.
    pub fn respond(&self, which: usize, outcome: Outcome) {
        let mut state = self.state.borrow_mut();
        state.events += 1;
        let now = state.events;
        let record = &mut state.records[which];
        assert!(record.outcome.is_none(), "an operation is answered once");
        assert!(record.invoked < now, "an answer comes after the question");
        if !outcome.as_ref().is_err_and(leaves_open) {
            record.returned = Some(now);
        }
        record.outcome = Some(outcome);
        record.took = self.start.elapsed() - record.began;
        let line = record.to_string();
        self.line(&mut state, &line);
    }

    /// Something else that the trace is to show.
    pub fn note(&self, what: &str) {
        self.line(&mut self.state.borrow_mut(), what);
    }

    fn line(&self, state: &mut State, what: &str) {
        tracing::info!("{what}");
        let mut line = format!("{:>12.6}  ", self.start.elapsed().as_secs_f64());
        line.write_str(what).expect("strings take all");
        state.trace.push(line);
    }

    /// Operations so far.
    pub fn len(&self) -> usize {
        self.state.borrow().records.len()
    }

    /// True before the first operation.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of it: the records in order of invocation, and the trace.
    pub fn take(&self) -> (Vec<Record>, Vec<String>) {
        let mut state = self.state.borrow_mut();
        let pending: Vec<String> = state
            .records
            .iter()
            .filter(|record| record.outcome.is_none())
            .map(ToString::to_string)
            .collect();
        for line in pending {
            state.trace.push(format!("{:>14}{line}", ""));
        }
        (std::mem::take(&mut state.records), std::mem::take(&mut state.trace))
    }
}

impl Default for History {
    fn default() -> Self {
        History::new()
    }
}
