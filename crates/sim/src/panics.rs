//! Panics on the thread of a run, also those in tasks that nobody waits for: each is a finding.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::panic;
use std::sync::Once;

thread_local! {
    static SEEN: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// From now on panics of this thread are collected instead of printed.
pub fn collect() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let is_collected = SEEN.with_borrow_mut(|seen| {
                if let Some(seen) = seen {
                    let trace = Backtrace::force_capture().to_string();
                    let ours = trace
                        .lines()
                        .filter(|line| line.contains("polvo_") || line.contains("crates/"));
                    let ours: Vec<&str> = ours.take(24).map(str::trim).collect();
                    seen.push(format!("{info}\n    {}", ours.join("\n    ")));
                }
                seen.is_some()
            });
            if !is_collected {
                before(info);
            }
        }));
    });
    SEEN.set(Some(Vec::new()));
}

/// What was collected; panics are printed again.
pub fn take() -> Vec<String> {
    SEEN.take().unwrap_or_default()
}
