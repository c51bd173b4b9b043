//! Progress bars on stderr; silent when stderr is no terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

fn on_stderr(bar: ProgressBar, quiet: bool) -> ProgressBar {
    let hidden = quiet || !std::io::stderr().is_terminal();
    bar.set_draw_target(if hidden {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr_with_hz(10)
    });
    bar
}

/// A bar for bytes, with rate and time left.
pub fn bytes(total: u64, quiet: bool) -> ProgressBar {
    let bar = on_stderr(ProgressBar::new(total), quiet);
    let template = "{wide_bar} {bytes:>10}/{total_bytes} {binary_bytes_per_sec:>12} {eta:>4} {msg}";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
    bar
}

/// A bar for things that are counted.
pub fn count(what: &str, total: u64, quiet: bool) -> ProgressBar {
    let bar = on_stderr(ProgressBar::new(total), quiet);
    bar.set_style(ProgressStyle::with_template("{msg:<24} {wide_bar} {pos}/{len}").expect("the template is valid"));
    bar.set_message(what.to_string());
    bar
}

/// A sign of life while something goes on whose end is not known.
pub fn spinner(what: &str, quiet: bool) -> ProgressBar {
    let bar = on_stderr(ProgressBar::new_spinner(), quiet);
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("the template is valid"));
    bar.set_message(what.to_string());
    bar
}
