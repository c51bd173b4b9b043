//! Every interleaving of some waits, the poller, the peer and the kernel, up to a bound: is anybody forgotten?
//!
//! The code that runs is that of production: waits, budgets, channel, poller. Its edges are played: a provider with a
//! ring or a socket, a clock, an executor. Wherever something else could happen in between, all that could is tried,
//! depth first: a run follows the choices made so far and takes the first of each new one; the next run takes another
//! at the last point where there is one. A point whose state has been seen before is not branched at again.
//!
//! What a processor may do to the order of loads and stores is not played: the fences of `shm/ring` are not its matter.

use super::completion_queue::Shared;
use super::{Asked, Directions, OpId, Wait, Waited, arm, poller, thread};
use crate::provider::{Completion, Polling, Posted, Progress, Provider};
use crate::queue_pair::{Execute, NextEvent};
use crate::{Event, FabricError, QueuePair, Remote, RemoteKey, Role, Verb};
use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::fmt::Write;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Bugs that the explorer has to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Planted {
    /// A poller whose time is over, or that ends, notifies nobody.
    PollerLeavesSilently,
    /// A channel that was woken takes itself to be armed still.
    ArmedForEver,
    /// Whoever leaves does not notify another sleeper though nothing else will.
    NoHandOver,
    /// In the provider played here: it does not poll once more when the peer knows that it sleeps.
    NoPollBeforeSleep,
    /// Whoever leaves the line for room, with room or without, does not notify the next one in it.
    RoomNotPassedOn,
    /// Whoever takes an event, or leaves, does not notify another one of those that are left.
    EventsNotPassedOn,
}

thread_local! {
    static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
    static CLOCK: RefCell<Option<Rc<Run>>> = const { RefCell::new(None) };
}

pub(super) fn is_planted(planted: Planted) -> bool {
    PLANTED.get() == Some(planted)
}

/// The clock of the run on this thread, if there is one: whoever reads it is told that some time has passed, once in a
/// run much.
pub(super) fn now() -> Option<Instant> {
    let run = CLOCK.with_borrow(Clone::clone)?;
    let is_long = !run.was_long.get() && run.choose(2) == 1;
    run.was_long.set(run.was_long.get() || is_long);
    let passed = if is_long { LONG_US } else { SHORT_US };
    run.clock_us.set(run.clock_us.get() + passed);
    run.observe(format_args!("t{passed}"));
    Some(run.now())
}

/// The busy-poll budget of waits that have one.
const BUDGET_US: u64 = 20;

/// What passes at least from one look at the clock to the next, longer than a wait's share of its thread; and what is
/// longer than the budget.
const SHORT_US: u64 = 9;
const LONG_US: u64 = 30;

/// What the peer sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    Event,
    /// The completion of what was posted first and is not complete.
    Completion,
}

/// What is played.
#[derive(Clone)]
struct Scenario {
    polling: Polling,
    peer: Vec<Sent>,
    /// Waits for an event each.
    events: usize,
    /// Waits for a batch each; the provider has room for one at a time.
    batches: usize,
    /// One is under way in the beginning, whose caller has gone.
    is_occupied: bool,
    has_poller: bool,
    /// That wait may be dropped at any time; batches are counted first.
    drops: Option<usize>,
    budget: Duration,
}

/// One run: choices, clock, and who is being polled.
struct Run {
    start: Instant,
    clock_us: Cell<u64>,
    was_long: Cell<bool>,
    /// At each point which of how many.
    path: RefCell<Vec<(usize, usize)>>,
    at: Cell<usize>,
    seen: RefCell<HashSet<String>>,
    /// What the future that is being polled has come to know since it was called.
    observed: RefCell<String>,
    /// What does not change while a future is polled, as text.
    outside: RefCell<String>,
    mock: RefCell<Option<Rc<Mock>>>,
}

impl Run {
    fn now(&self) -> Instant {
        self.start + Duration::from_micros(self.clock_us.get())
    }

    fn observe(&self, what: std::fmt::Arguments<'_>) {
        let _ = write!(self.observed.borrow_mut(), "{what} ");
    }

    /// A time as it is seen from now; all that are long past are one.
    fn relative(&self, time: Option<Instant>) -> String {
        let Some(time) = time else { return "-".into() };
        match time.checked_duration_since(self.now()) {
            Some(ahead) => format!("+{}", ahead.as_micros()),
            None => format!("-{}", (self.now() - time).as_micros().min(u128::from(LONG_US))),
        }
    }

    fn state(&self) -> String {
        let mock = self.mock.borrow();
        let mock = mock.as_ref().expect("it is there as long as anything happens");
        let thread = thread::with(|thread| thread.describe(|time| self.relative(time)));
        format!(
            "{} {} | {} | {} | {thread} | {} | {}",
            self.was_long.get(),
            self.outside.borrow(),
            self.observed.borrow(),
            mock.describe(),
            mock.shared.channel.describe().0,
            mock.shared.describe(),
        )
    }

    /// One of so many that can happen next.
    fn choose(&self, of: usize) -> usize {
        if of == 1 {
            return 0;
        }
        let at = self.at.replace(self.at.get() + 1);
        if let Some((chosen, was_of)) = self.path.borrow().get(at) {
            assert!(*was_of == of || *was_of == 1, "a run repeats what the one before did");
            return *chosen;
        }
        let is_new = self.seen.borrow_mut().insert(self.state());
        self.path.borrow_mut().push((0, if is_new { of } else { 1 }));
        0
    }

    /// The next run takes another way. False if there is none left.
    fn next(&self) -> bool {
        let mut path = self.path.borrow_mut();
        while let Some((chosen, of)) = path.last_mut() {
            *chosen += 1;
            if chosen < of {
                self.at.set(0);
                self.clock_us.set(0);
                self.was_long.set(false);
                return true;
            }
            path.pop();
        }
        false
    }
}

/// A provider whose peer and kernel are played.
struct Mock {
    run: Rc<Run>,
    shared: Shared,
    polling: Polling,
    channel_waker: Waker,
    /// What the peer has still to do; over a ring each thing that it sends is followed by a look at whether we sleep.
    peer: RefCell<VecDeque<Sent>>,
    rings: Cell<bool>,
    /// Sent and not received.
    arrived: RefCell<VecDeque<Sent>>,
    /// The peer has been told that we sleep (a ring).
    sleeps: Cell<bool>,
    /// The kernel has something to tell of the descriptor, the runtime knows that it is ready, somebody waits for that.
    edge: Cell<bool>,
    ready: Cell<bool>,
    registered: Cell<bool>,
    posted: RefCell<VecDeque<OpId>>,
    completions_sent: Cell<usize>,
    posts: Cell<usize>,
}

impl Mock {
    fn new(run: &Rc<Run>, scenario: &Scenario) -> Rc<Mock> {
        let shared = Shared::new(Role::Client, "mock".into());
        let mut posted = VecDeque::new();
        if scenario.is_occupied {
            let op = shared.begin(&mut a_batch());
            shared.abandon(op);
            posted.push_back(op);
        }
        Rc::new(Mock {
            run: run.clone(),
            channel_waker: Waker::from(shared.channel.clone()),
            shared,
            polling: scenario.polling,
            peer: RefCell::new(scenario.peer.iter().copied().collect()),
            rings: Cell::new(false),
            arrived: RefCell::default(),
            sleeps: Cell::new(false),
            edge: Cell::new(false),
            ready: Cell::new(false),
            registered: Cell::new(false),
            posts: Cell::new(posted.len()),
            posted: RefCell::new(posted),
            completions_sent: Cell::new(0),
        })
    }

    fn describe(&self) -> String {
        format!(
            "{:?} {:?} {:?} {:?} {} {}",
            self.peer.borrow(),
            self.arrived.borrow(),
            (self.rings.get(), self.sleeps.get(), self.edge.get()),
            (self.ready.get(), self.registered.get()),
            self.posted.borrow().len(),
            self.posts.get() - self.completions_sent.get(),
        )
    }

    fn peer_can_go_on(&self) -> bool {
        match self.peer.borrow().front() {
            _ if self.rings.get() => true,
            Some(Sent::Event) => true,
            Some(Sent::Completion) => self.completions_sent.get() < self.posts.get(),
            None => false,
        }
    }

    fn peer_goes_on(&self) {
        if self.rings.take() {
            if self.sleeps.take() {
                self.edge.set(true);
            }
            return;
        }
        let sent = self.peer.borrow_mut().pop_front().expect("it can go on");
        if sent == Sent::Completion {
            self.completions_sent.set(self.completions_sent.get() + 1);
        }
        self.arrived.borrow_mut().push_back(sent);
        match self.polling {
            Polling::Memory => self.rings.set(true),
            _ => self.edge.set(true),
        }
    }

    /// The runtime hears of the descriptor from the kernel; nothing of a socket that is empty again.
    fn kernel_tells(&self) {
        self.edge.set(false);
        if self.polling == Polling::Kernel && self.arrived.borrow().is_empty() {
            return;
        }
        self.ready.set(true);
        if self.registered.take() {
            self.channel_waker.wake_by_ref();
        }
    }

    /// The peer may do something in between.
    fn point(&self) {
        while self.peer_can_go_on() && self.run.choose(2) == 1 {
            self.peer_goes_on();
        }
    }

    fn receive(&self) {
        while let Some(sent) = self.take_arrived() {
            self.shared.note_activity();
            match sent {
                Sent::Event => self.shared.push_event(Event::Immediate(1)),
                Sent::Completion => {
                    let op = self.posted.borrow_mut().pop_front().expect("it was posted");
                    self.shared.complete(op, Ok(())).expect("it is ours");
                }
            }
        }
    }

    fn take_arrived(&self) -> Option<Sent> {
        self.arrived.borrow_mut().pop_front()
    }

    fn ask(&self, cx: &mut Context<'_>) -> Asked {
        assert!(cx.waker().will_wake(&self.channel_waker));
        let mut asked = Asked::Registered;
        self.point();
        if self.ready.replace(false) {
            asked = Asked::Ready;
            if self.polling == Polling::Kernel {
                self.receive();
            }
        } else {
            self.registered.set(true);
        }
        if self.polling == Polling::Memory {
            self.point();
            self.sleeps.set(true);
            if !is_planted(Planted::NoPollBeforeSleep) && !self.arrived.borrow().is_empty() {
                self.sleeps.set(false);
                self.receive();
                asked = Asked::Ready;
            }
        }
        asked
    }
}

impl Provider for Mock {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn post(&self, verbs: &mut [Verb<'_>], _completion: Completion) -> Result<Posted, FabricError> {
        if !self.posted.borrow().is_empty() {
            return Ok(Posted::Full);
        }
        let op = self.shared.begin(verbs);
        self.posted.borrow_mut().push_back(op);
        self.posts.set(self.posts.get() + 1);
        Ok(Posted::Pending(op))
    }

    fn progress(&self) -> Progress {
        self.point();
        self.run.observe(format_args!("p{}", self.arrived.borrow().len()));
        self.receive();
        Progress::Idle
    }

    fn may_have_come(&self) -> bool {
        let has_come = !self.arrived.borrow().is_empty();
        self.run.observe(format_args!("m{has_come}"));
        has_come
    }

    fn arm(&self) -> Progress {
        let wanted = || Directions {
            read: true,
            write: false,
        };
        let progress = arm(&self.shared, &self.channel_waker, wanted, |_, cx| self.ask(cx));
        self.run.observe(format_args!("a{progress:?}"));
        progress
    }

    fn abandon(&self, op: OpId) {
        self.shared.abandon(op);
    }

    fn close(&self, why: &str) {
        self.shared.lose(why);
    }

    fn polling(&self) -> Polling {
        self.polling
    }
}

/// A future of a run, and what it would do next as text.
trait Played {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    fn describe(&self, run: &Run) -> String;
}

struct AnEvent {
    provider: Rc<dyn Provider>,
    wait: Wait<Arc<super::CompletionChannel>>,
}

impl Played for AnEvent {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self
            .wait
            .poll(&self.provider, &mut NextEvent(self.provider.shared()), cx)
        {
            Waited::Ready(event) => {
                assert!(event.is_some(), "nobody closes it");
                Poll::Ready(())
            }
            Waited::Yielded | Waited::Asleep => Poll::Pending,
        }
    }

    fn describe(&self, run: &Run) -> String {
        self.wait.describe(|time| run.relative(time))
    }
}

impl Drop for AnEvent {
    fn drop(&mut self) {
        self.wait.end();
        self.provider.shared().pass_events_on();
    }
}

struct ABatch<'a, 'v, 'b>(Execute<'a, 'v, 'b>);

impl Played for ABatch<'_, '_, '_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        pin!(&mut self.0).poll(cx).map(|result| assert_eq!(result, Ok(())))
    }

    fn describe(&self, run: &Run) -> String {
        self.0.describe(|time| run.relative(time))
    }
}

struct ThePoller(Pin<Box<dyn Future<Output = ()>>>);

impl Played for ThePoller {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }

    fn describe(&self, _run: &Run) -> String {
        String::new()
    }
}

struct Runnable(AtomicBool);

impl Wake for Runnable {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a future is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    ForABatch,
    ForAnEvent,
    /// It is the poller.
    Ever,
}

struct Task<'a> {
    runnable: Arc<Runnable>,
    played: Option<Box<dyn Played + 'a>>,
    waits_for: Waits,
}

impl<'a> Task<'a> {
    fn new(played: impl Played + 'a, waits_for: Waits) -> Task<'a> {
        Task {
            runnable: Arc::new(Runnable(AtomicBool::new(true))),
            played: Some(Box::new(played)),
            waits_for,
        }
    }

    fn is_runnable(&self) -> bool {
        self.played.is_some() && self.runnable.0.load(Ordering::Relaxed)
    }

    fn poll(&mut self) {
        self.runnable.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(self.runnable.clone());
        let played = self.played.as_mut().expect("it is runnable");
        if played.poll(&mut Context::from_waker(&waker)).is_ready() {
            self.played = None;
        }
    }
}

#[derive(Clone, Copy)]
enum Step {
    Poll(usize),
    Peer,
    Kernel,
    Drop(usize),
}

fn a_batch() -> [Verb<'static>; 1] {
    let at = Remote {
        key: RemoteKey(1),
        offset: 0,
    };
    [Verb::Flush { at, len: 0 }]
}

/// One run to its end.
fn play(run: &Rc<Run>, scenario: &Scenario) {
    let mock = Mock::new(run, scenario);
    *run.mock.borrow_mut() = Some(mock.clone());
    let provider: Rc<dyn Provider> = mock.clone();
    let qp = QueuePair::new(provider.clone());
    let mut batches: Vec<_> = (0..scenario.batches).map(|_| a_batch()).collect();
    let mut tasks = Vec::new();
    for batch in &mut batches {
        let execute = Execute::new(&qp, batch, Completion::Signaled, scenario.budget);
        tasks.push(Task::new(ABatch(execute), Waits::ForABatch));
    }
    for _ in 0..scenario.events {
        let wait = Wait::new(mock.shared.channel.clone(), &*provider, scenario.budget);
        let provider = provider.clone();
        tasks.push(Task::new(AnEvent { provider, wait }, Waits::ForAnEvent));
    }
    if scenario.has_poller {
        tasks.push(Task::new(ThePoller(Box::pin(poller())), Waits::Ever));
    }
    let mut drops = scenario.drops;
    loop {
        let mut steps: Vec<_> = (0..tasks.len())
            .filter(|at| tasks[*at].is_runnable())
            .map(Step::Poll)
            .collect();
        if mock.peer_can_go_on() {
            steps.push(Step::Peer);
        }
        if mock.edge.get() {
            steps.push(Step::Kernel);
        }
        if let Some(at) = drops.filter(|at| tasks[*at].played.is_some()) {
            steps.push(Step::Drop(at));
        }
        if steps.iter().all(|step| matches!(step, Step::Drop(_))) {
            break;
        }
        describe_tasks(run, &tasks, drops.is_some(), usize::MAX);
        match steps[run.choose(steps.len())] {
            Step::Poll(at) => {
                describe_tasks(run, &tasks, drops.is_some(), at);
                tasks[at].poll();
            }
            Step::Peer => mock.peer_goes_on(),
            Step::Kernel => mock.kernel_tells(),
            Step::Drop(at) => {
                drops = None;
                tasks[at].played = None;
            }
        }
        let (state, sleeps) = mock.shared.channel.describe();
        assert!(
            !sleeps || mock.shared.channel.is_watched(),
            "somebody sleeps and nobody will notify: {state}"
        );
    }
    let waits = |task: &&Task<'_>| task.played.is_some() && task.waits_for != Waits::Ever;
    let mut forgotten = tasks.iter().filter(waits);
    let has_come = mock.shared.any_event() || !mock.arrived.borrow().is_empty();
    assert!(
        forgotten.all(|task| task.waits_for == Waits::ForAnEvent && !has_come),
        "what somebody waits for has come, and it sleeps"
    );
    drop(tasks);
    *run.mock.borrow_mut() = None;
    thread::with(thread::Thread::reset);
}

fn describe_tasks(run: &Run, tasks: &[Task<'_>], may_drop: bool, polled: usize) {
    let mut outside = format!("{may_drop} {polled}");
    for task in tasks {
        let state = task.played.as_ref().map(|played| played.describe(run));
        let _ = write!(outside, " [{:?} {}]", state, task.is_runnable());
    }
    *run.outside.borrow_mut() = outside;
    run.observed.borrow_mut().clear();
}

/// All runs of a scenario: how many, or how one failed.
fn explore(scenario: &Scenario, planted: Option<Planted>) -> Result<usize, String> {
    let scenario = scenario.clone();
    let explored = std::thread::spawn(move || {
        PLANTED.set(planted);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let _entered = runtime.enter();
        let run = Rc::new(Run {
            start: Instant::now(),
            clock_us: Cell::new(0),
            was_long: Cell::new(false),
            path: RefCell::default(),
            at: Cell::new(0),
            seen: RefCell::default(),
            observed: RefCell::default(),
            outside: RefCell::default(),
            mock: RefCell::default(),
        });
        CLOCK.set(Some(run.clone()));
        let mut runs = 1;
        let explored = catch_unwind(AssertUnwindSafe(|| {
            play(&run, &scenario);
            while run.next() {
                play(&run, &scenario);
                runs += 1;
            }
        }));
        CLOCK.set(None);
        let how = |panic: Box<dyn std::any::Any + Send>| match panic.downcast::<String>() {
            Ok(what) => *what,
            Err(panic) => panic.downcast_ref::<&str>().map_or("?", |what| *what).to_owned(),
        };
        explored.map(|()| runs).map_err(how)
    });
    explored.join().expect("what fails is caught")
}

/// What is explored: with a poller and without one, waits that poll and such that sleep at once.
fn scenarios(polling: Polling) -> Vec<(&'static str, Scenario)> {
    use Sent::{Completion, Event};
    let mut all = Vec::new();
    for (has_poller, budget) in [
        (false, Duration::ZERO),
        (false, Duration::from_micros(BUDGET_US)),
        (true, Duration::from_micros(BUDGET_US)),
    ] {
        let scenario = |peer: &[Sent], events, batches, drops| Scenario {
            polling,
            peer: peer.to_vec(),
            events,
            batches,
            is_occupied: false,
            has_poller,
            drops,
            budget,
        };
        all.push(("one of two leaves", scenario(&[Event], 2, 0, Some(0))));
        all.push(("an event and a batch", scenario(&[Event, Completion], 1, 1, None)));
        if has_poller {
            continue; // tens of thousands of runs each
        }
        all.push(("two events", scenario(&[Event, Event], 2, 0, None)));
        all.push(("a batch and an event", scenario(&[Completion, Event], 1, 1, None)));
        all.push(("a batch leaves", scenario(&[Completion, Event], 1, 1, Some(0))));
        all.push(("two batches in line", scenario(&[Completion; 2], 0, 2, None)));
        all.push(("one in line leaves", scenario(&[Completion; 2], 0, 2, Some(0))));
        if !budget.is_zero() {
            continue;
        }
        all.push(("three waits", scenario(&[Event, Completion, Event], 2, 1, None)));
        all.push((
            "one whom a batch has found an event for leaves",
            scenario(&[Event, Completion], 2, 1, Some(1)),
        ));
        let occupied = Scenario {
            is_occupied: true,
            ..scenario(&[Completion; 3], 0, 2, Some(0))
        };
        all.push(("two wait for one room, one leaves", occupied));
    }
    all
}

fn nobody_is_forgotten(polling: Polling) {
    for (name, scenario) in scenarios(polling) {
        let runs = explore(&scenario, None);
        println!(
            "{name}, poller {}, budget {:?}: {runs:?}",
            scenario.has_poller, scenario.budget
        );
        assert!(runs.is_ok_and(|runs| runs > 50), "{name}");
    }
}

#[test]
fn nobody_is_forgotten_over_a_ring_whatever_the_order() {
    nobody_is_forgotten(Polling::Memory);
}

#[test]
fn nobody_is_forgotten_over_a_socket_whatever_the_order() {
    nobody_is_forgotten(Polling::Kernel);
}

#[test]
fn planted_bugs_are_found() {
    for planted in [
        Planted::PollerLeavesSilently,
        Planted::ArmedForEver,
        Planted::NoHandOver,
        Planted::NoPollBeforeSleep,
        Planted::RoomNotPassedOn,
        Planted::EventsNotPassedOn,
    ] {
        let both = [Polling::Memory, Polling::Kernel].map(scenarios);
        let found = both
            .into_iter()
            .flatten()
            .find_map(|(name, scenario)| Some((name, explore(&scenario, Some(planted)).err()?)));
        println!("{planted:?}: {found:?}");
        assert!(found.is_some(), "{planted:?}");
    }
}
