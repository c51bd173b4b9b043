//! Plots, as SVG that needs nothing else: colours follow the page's (or the viewer's) light or dark scheme.

use super::{Row, figure};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// One axis of a plot of lines.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Axis {
    /// What it shows, with its unit.
    pub label: String,
    /// Logarithmic.
    pub log: bool,
}

impl Axis {
    /// Linear, from 0.
    pub fn linear(label: &str) -> Axis {
        Axis {
            label: label.into(),
            log: false,
        }
    }

    /// Logarithmic.
    pub fn log(label: &str) -> Axis {
        Axis {
            label: label.into(),
            log: true,
        }
    }
}

/// A line: points in the order of `x`.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// `x`, `y`.
    pub points: Vec<(f64, f64)>,
}

/// One bar: how good something is beside its baseline.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Bar {
    /// What, and beside what.
    pub label: String,
    /// 1 as good, above better.
    pub advantage: f64,
    /// What it has to be.
    pub target: Option<f64>,
    /// Whether it is.
    pub met: Option<bool>,
}

/// A plot.
#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Plot {
    /// Lines over a parameter.
    Lines {
        /// Of its file.
        name: String,
        /// Above it.
        title: String,
        /// Horizontal.
        x: Axis,
        /// Vertical.
        y: Axis,
        /// At most eight.
        series: Vec<Series>,
    },
    /// Ratios to baselines.
    Ratios {
        /// Of its file.
        name: String,
        /// Above it.
        title: String,
        /// From top to bottom.
        bars: Vec<Bar>,
    },
}

const WIDTH: f64 = 980.0;
/// Colours that differ for colour-blind eyes too (Okabe and Ito).
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b8a800",
];
const STYLE: &str = "<style>.t{fill:#1a1a1a}.g{stroke:#c8c8c8}.a{stroke:#1a1a1a}.b{fill:#0072b2}.m{fill:#d55e00}\
    @media(prefers-color-scheme:dark){.t{fill:#e6e6e6}.g{stroke:#4a4a4a}.a{stroke:#e6e6e6}.b{fill:#56b4e9}\
    .m{fill:#ff8c42}}text{font:13px system-ui,sans-serif}.h{font-weight:600;font-size:15px}.s{font-size:12px}</style>";

/// Characters that there is room for beside the bars.
const LABEL: usize = 84;

/// What, and beside what: of the baseline's name without what both begin with, and not longer than there is room for.
fn label(name: &str, baseline: &str) -> String {
    let shared: usize = name
        .split_inclusive(' ')
        .zip(baseline.split_inclusive(' '))
        .take_while(|(ours, theirs)| ours == theirs)
        .map(|(word, _)| word.len())
        .sum();
    let all = format!("{name} : {}", &baseline[shared..]);
    match all.char_indices().nth(LABEL) {
        Some((end, _)) => format!("{}…", &all[..end]),
        None => all,
    }
}

/// Text as it may stand in XML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

impl Plot {
    /// The ratios of rows; `None` where there are none.
    pub fn of_ratios(name: &str, title: &str, rows: &[Row]) -> Option<Plot> {
        let bars: Vec<Bar> = rows
            .iter()
            .filter_map(|row| {
                Some(Bar {
                    label: label(&row.name, &row.baseline),
                    advantage: row.advantage()?,
                    target: row.limit.map(|limit| row.as_advantage(limit)),
                    met: row.met,
                })
            })
            .collect();
        (!bars.is_empty()).then(|| Plot::Ratios {
            name: name.into(),
            title: title.into(),
            bars,
        })
    }

    /// Each line has a colour of its own.
    pub(super) fn check(&self) {
        if let Plot::Lines { series, .. } = self {
            assert!(series.len() <= COLOURS.len(), "{} lines", series.len());
        }
    }

    /// Above it.
    pub fn title(&self) -> &str {
        match self {
            Plot::Lines { title, .. } | Plot::Ratios { title, .. } => title,
        }
    }

    /// Of its file, without ending.
    pub fn name(&self) -> &str {
        match self {
            Plot::Lines { name, .. } | Plot::Ratios { name, .. } => name,
        }
    }

    /// An SVG document.
    pub fn to_svg(&self) -> String {
        let mut svg = String::new();
        match self {
            Plot::Lines {
                title, x, y, series, ..
            } => lines(&mut svg, title, x, y, series),
            Plot::Ratios { title, bars, .. } => ratios(&mut svg, title, bars),
        }
        svg
    }
}

/// Writing to a string cannot fail.
macro_rules! put {
    ($to:expr, $($arg:tt)*) => {
        writeln!($to, $($arg)*).expect("a string takes everything")
    };
}

fn begin(svg: &mut String, height: f64, title: &str) {
    put!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">{STYLE}"
    );
    let title = escaped(title);
    put!(
        svg,
        "<title>{title}</title><text class=\"t h\" x=\"12\" y=\"22\">{title}</text>"
    );
}

/// From values to pixels.
struct Scale {
    from: f64,
    to: f64,
    log: bool,
    start: f64,
    end: f64,
}

impl Scale {
    /// Covers the values: from 0, or whole powers of ten where it is logarithmic and they are not given as ticks.
    fn over(values: impl Iterator<Item = f64> + Clone, log: bool, start: f64, end: f64) -> Scale {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        debug_assert!(start != end, "a scale has a length");
        let (from, to) = match log {
            true if low > 0.0 && high > low => (low, high),
            true => (1.0, 10.0),
            false if high > 0.0 => (0.0, high * 1.05),
            false => (0.0, 1.0),
        };
        assert!(from < to, "a scale from {from} to {to}");
        Scale {
            from,
            to,
            log,
            start,
            end,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(self.from * 1e-3) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.start + part * (self.end - self.start)
    }

    /// Four to ten round values.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let mut ticks: Vec<f64> = Vec::new();
            let decades = (self.from.log10().floor() as i32)..=(self.to.log10().ceil() as i32);
            let many = self.to / self.from > 1e4;
            for decade in decades {
                let steps: &[f64] = if many { &[1.0] } else { &[1.0, 2.0, 5.0] };
                ticks.extend(steps.iter().map(|step| step * 10f64.powi(decade)));
            }
            ticks.retain(|tick| (self.from * 0.999..=self.to * 1.001).contains(tick));
            return ticks;
        }
        let rough = (self.to - self.from) / 6.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|step| step * power)
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        (0..12)
            .map(|index| self.from + f64::from(index) * step)
            .take_while(|tick| *tick <= self.to)
            .collect()
    }
}

/// A tick's label: 1,500,000 as 1.5M.
fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{suffix}")
}

/// Where the plot of lines ends; beside it are their names.
const LINES_RIGHT: f64 = WIDTH - 250.0;

fn lines(svg: &mut String, title: &str, x: &Axis, y: &Axis, series: &[Series]) {
    const HEIGHT: f64 = 400.0;
    const RIGHT: f64 = LINES_RIGHT;
    begin(svg, HEIGHT, title);
    let points = || series.iter().flat_map(|line| line.points.iter().copied());
    let across = Scale::over(points().map(|(x, _)| x), x.log, 76.0, RIGHT);
    let up = Scale::over(points().map(|(_, y)| y), y.log, HEIGHT - 56.0, 44.0);
    for tick in up.ticks() {
        let at = up.at(tick);
        put!(
            svg,
            "<line class=\"g\" x1=\"76\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"t s\" x=\"70\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            at + 4.0,
            short(tick)
        );
    }
    // the parameter's own values are the ticks
    let mut values: Vec<f64> = points().map(|(x, _)| x).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let mut last = f64::NEG_INFINITY;
    for value in values {
        let at = across.at(value);
        if at - last < 46.0 {
            continue;
        }
        last = at;
        put!(
            svg,
            "<line class=\"a\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{}\" y2=\"{}\"/>\
             <text class=\"t s\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 56.0,
            HEIGHT - 51.0,
            HEIGHT - 36.0,
            match &*x.label {
                "bytes" => crate::crowd::shown(value as usize),
                _ => short(value),
            }
        );
    }
    put!(
        svg,
        "<line class=\"a\" x1=\"76\" x2=\"{RIGHT}\" y1=\"{0}\" y2=\"{0}\"/>\
         <text class=\"t\" x=\"{1}\" y=\"{2}\" text-anchor=\"middle\">{3}</text>\
         <text class=\"t\" transform=\"translate(18 {4}) rotate(-90)\" text-anchor=\"middle\">{5}</text>",
        HEIGHT - 56.0,
        (76.0 + RIGHT) / 2.0,
        HEIGHT - 12.0,
        escaped(&x.label),
        HEIGHT / 2.0,
        escaped(&y.label)
    );
    for (index, line) in series.iter().enumerate() {
        draw(svg, index, line, &across, &up);
    }
    svg.push_str("</svg>\n");
}

/// One line with its points, and its name beside the plot.
fn draw(svg: &mut String, index: usize, line: &Series, across: &Scale, up: &Scale) {
    let colour = COLOURS[index % COLOURS.len()];
    let path: Vec<String> = line
        .points
        .iter()
        .map(|(x, y)| format!("{:.1},{:.1}", across.at(*x), up.at(*y)))
        .collect();
    put!(
        svg,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
        path.join(" ")
    );
    for ((_, value), at) in line.points.iter().zip(&path) {
        let (cx, cy) = at.split_once(',').expect("written so above");
        put!(
            svg,
            "<circle cx=\"{cx}\" cy=\"{cy}\" r=\"3.5\" fill=\"{colour}\"><title>{}: {}</title></circle>",
            escaped(&line.name),
            figure(*value)
        );
    }
    let key = 52.0 + 22.0 * index as f64;
    put!(
        svg,
        "<rect x=\"{}\" y=\"{}\" width=\"16\" height=\"4\" fill=\"{colour}\"/>\
         <text class=\"t s\" x=\"{}\" y=\"{}\">{}</text>",
        LINES_RIGHT + 14.0,
        key - 6.0,
        LINES_RIGHT + 36.0,
        key,
        escaped(&line.name)
    );
}

fn ratios(svg: &mut String, title: &str, bars: &[Bar]) {
    const LEFT: f64 = 560.0;
    const ROW: f64 = 24.0;
    let height = 74.0 + ROW * bars.len() as f64;
    begin(svg, height, title);
    let values = bars
        .iter()
        .flat_map(|bar| [Some(bar.advantage), bar.target])
        .flatten()
        .chain([0.5, 2.0])
        .filter(|value| *value > 0.0);
    let across = Scale::over(values, true, LEFT, WIDTH - 70.0);
    let (top, bottom) = (38.0, 38.0 + ROW * bars.len() as f64);
    for tick in across.ticks() {
        let (at, class) = (across.at(tick), if tick == 1.0 { "a" } else { "g" });
        put!(
            svg,
            "<line class=\"{class}\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>\
             <text class=\"t s\" x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 15.0,
            short(tick)
        );
    }
    let one = across.at(1.0);
    for (index, bar) in bars.iter().enumerate() {
        let y = top + ROW * index as f64;
        let end = across.at(bar.advantage);
        let (from, width) = (one.min(end), (end - one).abs().max(1.0));
        let class = if bar.met == Some(false) { "m" } else { "b" };
        put!(
            svg,
            "<text class=\"t s\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"14\"/>",
            LEFT - 8.0,
            y + 16.0,
            escaped(&bar.label),
            y + 5.0
        );
        // beyond everything else in the row
        let at = bar.target.map_or(one, |target| across.at(target)).max(one).max(end) + 6.0;
        put!(
            svg,
            "<text class=\"t s\" x=\"{at:.1}\" y=\"{:.1}\">{}x</text>",
            y + 16.0,
            figure(bar.advantage)
        );
        if let Some(target) = bar.target {
            let at = across.at(target);
            put!(
                svg,
                "<line class=\"a\" stroke-width=\"3\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                y + 2.0,
                y + 22.0
            );
        }
    }
    put!(
        svg,
        "<text class=\"t s\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">\
         times as good as the baseline; thick mark: target; orange: missed</text></svg>",
        (LEFT + WIDTH - 70.0) / 2.0,
        bottom + 31.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(from: f64, to: f64, log: bool) -> Scale {
        Scale {
            from,
            to,
            log,
            start: 0.0,
            end: 100.0,
        }
    }

    #[test]
    fn values_lie_where_they_belong() {
        let linear = scale(0.0, 200.0, false);
        assert_eq!((linear.at(0.0), linear.at(50.0), linear.at(200.0)), (0.0, 25.0, 100.0));
        let log = scale(1.0, 100.0, true);
        assert!((log.at(10.0) - 50.0).abs() < 1e-9 && log.at(1.0) == 0.0 && (log.at(100.0) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn there_are_some_ticks_and_not_too_many() {
        for (from, to, log) in [
            (0.0, 1.0, false),
            (0.0, 1_234_567.0, false),
            (0.0, 0.003, false),
            (0.5, 2.0, true),
            (0.01, 100.0, true),
            (1.0, 1e9, true),
        ] {
            let ticks = scale(from, to, log).ticks();
            assert!((3..=15).contains(&ticks.len()), "{from}..{to}: {ticks:?}");
            assert!(ticks.iter().all(|t| *t >= from * 0.99 && *t <= to * 1.01), "{ticks:?}");
        }
    }

    #[test]
    fn labels_say_once_what_both_have_in_common_and_fit() {
        assert_eq!(
            label("library read", "memcpy of pages"),
            "library read : memcpy of pages"
        );
        assert_eq!(
            label("tcp create, ours", "tcp create, theirs"),
            "tcp create, ours : theirs"
        );
        assert_eq!(label(&"x".repeat(200), "y").chars().count(), LABEL + 1);
    }

    #[test]
    fn names_cannot_break_the_document() {
        let plot = Plot::Lines {
            name: "a".into(),
            title: "a < b & \"c\"".into(),
            x: Axis::log("bytes"),
            y: Axis::linear("1/s"),
            series: vec![Series {
                name: "<x>".into(),
                points: vec![(16.0, 1e6), (1024.0, 5e5)],
            }],
        };
        let svg = plot.to_svg();
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;") && svg.contains("&lt;x&gt;") && !svg.contains("<x>"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
    }

    #[test]
    fn a_plot_without_a_spread_is_drawn_too() {
        let one = Plot::Lines {
            name: "one".into(),
            title: "one".into(),
            x: Axis::log("x"),
            y: Axis::log("y"),
            series: vec![Series {
                name: "s".into(),
                points: vec![(8.0, 0.0)],
            }],
        };
        let bar = Plot::Ratios {
            name: "r".into(),
            title: "r".into(),
            bars: vec![Bar {
                label: "l".into(),
                advantage: 1.0,
                target: Some(2.0),
                met: Some(false),
            }],
        };
        for plot in [one, bar] {
            let svg = plot.to_svg();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
