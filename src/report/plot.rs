//! Plots as SVG, written by hand: the same numbers give the same bytes, and nothing is loaded.

use std::fmt::Write;

use super::{Tone, escape};

/// A plot.
#[derive(Debug, Clone)]
pub struct Plot {
    title: String,
    width: f64,
    height: f64,
    body: String,
}

/// Colours and fonts, in a light and a dark scheme. A page includes them once; a file on its own has them inside.
pub const STYLE: &str = "\
.plot{--ink:#1f2328;--dim:#59636e;--line:#d1d9e0;--back:#ffffff;--blue:#0969da;--good:#1a7f37;--bad:#cf222e;--grey:#8c959f;--amber:#bf8700}
@media (prefers-color-scheme:dark){.plot{--ink:#e6edf3;--dim:#9198a1;--line:#3d444d;--back:#0d1117;--blue:#4493f8;--good:#3fb950;--bad:#f85149;--grey:#768390;--amber:#d29922}}
@media print{.plot{--ink:#000000;--dim:#444444;--line:#cccccc;--back:#ffffff}}
.plot text{fill:var(--ink);font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}
.plot .dim{fill:var(--dim)}.plot .title{font-weight:600;font-size:13px}.plot .end{text-anchor:end}.plot .mid{text-anchor:middle}
.plot .grid{stroke:var(--line)}.plot .zero{stroke:var(--dim)}
.plot .blue{--c:var(--blue)}.plot .good{--c:var(--good)}.plot .bad{--c:var(--bad)}.plot .grey{--c:var(--grey)}.plot .amber{--c:var(--amber)}
.plot .stroke{stroke:var(--c);fill:none;stroke-width:2}.plot .fill{fill:var(--c)}.plot .band{fill:var(--c);opacity:.18}";

impl Plot {
    /// For a page that has [`STYLE`].
    pub fn inline(&self) -> String {
        let Self { title, width, height, body } = self;
        let title = escape::html(title);
        format!(
            "<svg class=\"plot\" role=\"img\" aria-label=\"{title}\" viewBox=\"0 0 {width:.0} {height:.0}\" style=\"max-width:{width:.0}px\">{body}</svg>"
        )
    }

    /// A file of its own.
    pub fn file(&self) -> String {
        let Self { title, width, height, body } = self;
        let title = escape::html(title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" viewBox=\"0 0 {width:.0} {height:.0}\">\n<title>{title}</title>\n<style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" style=\"fill:var(--back)\"/>\n{body}</svg>\n"
        )
    }
}

/// A line of a chart: x, y and the interval of y.
#[derive(Debug, Clone)]
pub struct Series {
    /// Empty if the chart has one line.
    pub name: String,
    /// `blue`, `good`, `bad`, `grey` or `amber`.
    pub colour: &'static str,
    pub points: Vec<Point>,
}

#[derive(Debug, Clone, Copy)]
pub struct Point {
    pub x: f64,
    pub y: f64,
    pub interval: Option<(f64, f64)>,
}

/// What a chart's y axis shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// From 0 to 100 %.
    Percent,
    /// As far as the values reach.
    Values,
}

/// A chart of lines over iterations or steps. None if no series has a point.
pub fn lines(title: &str, x_name: &str, series: &[Series], scale: Scale, size: (f64, f64)) -> Option<Plot> {
    let (width, height) = size;
    let points = || series.iter().flat_map(|series| &series.points).filter(|point| point.y.is_finite());
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    let (mut first, mut last) = (f64::INFINITY, f64::NEG_INFINITY);
    for point in points() {
        (first, last) = (first.min(point.x), last.max(point.x));
        (low, high) = (low.min(point.y), high.max(point.y));
    }
    if !first.is_finite() {
        return None;
    }
    let ticks = match scale {
        Scale::Percent => vec![0.0, 0.25, 0.5, 0.75, 1.0],
        Scale::Values => ticks(low, high),
    };
    let (low, high) = (ticks[0], *ticks.last().unwrap_or(&1.0));
    let (left, top, right, bottom) = (52.0, 30.0, width - 14.0, height - 34.0);
    let x_of = |x: f64| left + (right - left) * if last > first { (x - first) / (last - first) } else { 0.5 };
    let y_of = |y: f64| bottom - (bottom - top) * ((y.clamp(low, high) - low) / (high - low));
    let mut body = String::new();
    _ = writeln!(body, "<text class=\"title\" x=\"{left:.0}\" y=\"16\">{}</text>", escape::html(title));
    for tick in &ticks {
        let (y, label) = (y_of(*tick), if scale == Scale::Percent { percent(*tick) } else { number(*tick) });
        _ = writeln!(
            body,
            "<line class=\"grid\" x1=\"{left:.0}\" x2=\"{right:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"dim end\" x=\"{:.0}\" y=\"{:.1}\">{label}</text>",
            left - 6.0,
            y + 4.0
        );
    }
    for Series { colour, points, .. } in series {
        let mut banded =
            points.iter().filter(|point| point.y.is_finite() && point.interval.is_some()).peekable();
        if banded.peek().is_some() {
            let banded: Vec<&Point> = banded.collect();
            let ends = |of: fn((f64, f64)) -> f64| {
                banded.iter().map(move |point| (point.x, of(point.interval.unwrap_or_default())))
            };
            let outline: Vec<String> = ends(|interval| interval.1)
                .chain(ends(|interval| interval.0).rev())
                .map(|(x, y)| format!("{:.1},{:.1}", x_of(x), y_of(y)))
                .collect();
            _ = writeln!(body, "<polygon class=\"{colour} band\" points=\"{}\"/>", outline.join(" "));
        }
        let line: Vec<String> = points
            .iter()
            .filter(|point| point.y.is_finite())
            .map(|point| format!("{:.1},{:.1}", x_of(point.x), y_of(point.y)))
            .collect();
        _ = writeln!(body, "<polyline class=\"{colour} stroke\" points=\"{}\"/>", line.join(" "));
        if line.len() <= 64 {
            for at in &line {
                let (x, y) = at.split_once(',').unwrap_or_default();
                _ = write!(body, "<circle class=\"{colour} fill\" cx=\"{x}\" cy=\"{y}\" r=\"2.2\"/>");
            }
            body.push('\n');
        }
    }
    let mut x = right;
    for Series { name, colour, .. } in series.iter().rev().filter(|series| !series.name.is_empty()) {
        _ = writeln!(body, "<text class=\"end\" x=\"{x:.0}\" y=\"16\">{}</text>", escape::html(name));
        x -= 7.0 * name.chars().count() as f64 + 6.0;
        _ = writeln!(
            body,
            "<rect class=\"{colour} fill\" x=\"{:.0}\" y=\"7\" width=\"10\" height=\"10\"/>",
            x - 8.0
        );
        x -= 20.0;
    }
    let middle = first + ((last - first) / 2.0).floor();
    let mut marks = vec![first, middle, last];
    marks.dedup();
    for mark in marks {
        _ = write!(
            body,
            "<text class=\"dim mid\" x=\"{:.1}\" y=\"{:.1}\">{mark:.0}</text>",
            x_of(mark),
            bottom + 15.0
        );
    }
    let centre = f64::midpoint(left, right);
    _ = writeln!(
        body,
        "<text class=\"dim mid\" x=\"{centre:.1}\" y=\"{:.1}\">{}</text>",
        bottom + 29.0,
        escape::html(x_name)
    );
    Some(Plot { title: title.to_owned(), width, height, body })
}

/// A row of a forest plot: a difference with its interval.
#[derive(Debug, Clone)]
pub struct Effect {
    pub label: String,
    /// Size of the slice.
    pub count: u32,
    pub value: f64,
    pub low: f64,
    pub high: f64,
    pub tone: Tone,
    /// In bold, with a rule below.
    pub is_total: bool,
}

/// Differences in points with their 95 % intervals, one below the other. None without rows.
pub fn forest(title: &str, effects: &[Effect]) -> Option<Plot> {
    if effects.is_empty() {
        return None;
    }
    let (width, row) = (720.0, 22.0);
    let (left, right, top) = (220.0, 560.0, 34.0);
    let bound = |of: fn(&Effect) -> f64| effects.iter().map(of).filter(|value| value.is_finite());
    let low = bound(|effect| effect.low).fold(0.0, f64::min).max(-1.0);
    let high = bound(|effect| effect.high).fold(0.0, f64::max).min(1.0);
    let ticks = ticks(low, high.max(low + 0.05));
    let (low, high) = (ticks[0], *ticks.last().unwrap_or(&1.0));
    let x_of = |value: f64| left + (right - left) * ((value.clamp(low, high) - low) / (high - low));
    let bottom = top + row * effects.len() as f64;
    let mut body = String::new();
    _ = writeln!(body, "<text class=\"title\" x=\"8\" y=\"18\">{}</text>", escape::html(title));
    for tick in &ticks {
        let (x, class) = (x_of(*tick), if *tick == 0.0 { "zero" } else { "grid" });
        _ = writeln!(
            body,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.0}\" y2=\"{bottom:.0}\"/><text class=\"dim mid\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            bottom + 16.0,
            points(*tick, 0)
        );
    }
    for (index, effect) in effects.iter().enumerate() {
        let y = top + row * (index as f64 + 0.5);
        let colour = match effect.tone {
            Tone::Good => "good",
            Tone::Bad => "bad",
            Tone::Plain | Tone::Faint => "grey",
        };
        let weight = if effect.is_total { "title" } else { "" };
        let (from, to, at) = (x_of(effect.low), x_of(effect.high), x_of(effect.value));
        _ = writeln!(
            body,
            "<text class=\"{weight}\" x=\"8\" y=\"{text:.1}\">{}<tspan class=\"dim\"> {}</tspan></text><line class=\"{colour} stroke\" x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><circle class=\"{colour} fill\" cx=\"{at:.1}\" cy=\"{y:.1}\" r=\"4\"/><text class=\"end\" x=\"{end:.0}\" y=\"{text:.1}\">{} [{}, {}]</text>",
            escape::html(&escape::shortened(&effect.label, 26)),
            effect.count,
            points(effect.value, 1),
            points(effect.low, 0),
            points(effect.high, 0),
            text = y + 4.0,
            end = width - 8.0,
        );
    }
    let height = bottom + 24.0;
    Some(Plot { title: title.to_owned(), width, height, body })
}

/// A part of every bar of a stack.
#[derive(Debug, Clone)]
pub struct Part {
    pub name: &'static str,
    pub colour: &'static str,
    /// One value per bar.
    pub values: Vec<f64>,
}

/// Bars of shares, stacked from the bottom. None without bars.
pub fn stacks(title: &str, x_name: &str, labels: &[u32], parts: &[Part], size: (f64, f64)) -> Option<Plot> {
    let (width, height) = size;
    let (left, top, right, bottom) = (52.0, 48.0, width - 14.0, height - 34.0);
    if labels.is_empty() {
        return None;
    }
    let mut body = String::new();
    _ = writeln!(body, "<text class=\"title\" x=\"{left:.0}\" y=\"16\">{}</text>", escape::html(title));
    let mut x = left;
    for Part { name, colour, .. } in parts {
        _ = writeln!(
            body,
            "<rect class=\"{colour} fill\" x=\"{x:.0}\" y=\"26\" width=\"10\" height=\"10\"/><text class=\"dim\" x=\"{:.0}\" y=\"35\">{name}</text>",
            x + 14.0
        );
        x += 32.0 + 6.4 * name.len() as f64;
    }
    for tick in [0.0, 0.5, 1.0] {
        let y = bottom - (bottom - top) * tick;
        _ = writeln!(
            body,
            "<line class=\"grid\" x1=\"{left:.0}\" x2=\"{right:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"dim end\" x=\"{:.0}\" y=\"{:.1}\">{}</text>",
            left - 6.0,
            y + 4.0,
            percent(tick)
        );
    }
    let pitch = (right - left) / labels.len() as f64;
    let bar = (pitch * 0.8).min(40.0);
    for (index, label) in labels.iter().enumerate() {
        let total: f64 = parts.iter().filter_map(|part| part.values.get(index)).sum();
        let x = left + pitch * (index as f64 + 0.5) - bar / 2.0;
        let mut y = bottom;
        for part in parts {
            let share = part.values.get(index).copied().unwrap_or(0.0) / total;
            if !share.is_finite() || share <= 0.0 {
                continue;
            }
            let tall = (bottom - top) * share;
            y -= tall;
            _ = write!(
                body,
                "<rect class=\"{} fill\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{bar:.1}\" height=\"{tall:.1}\"/>",
                part.colour
            );
        }
        body.push('\n');
        if index == 0 || index + 1 == labels.len() || index == labels.len() / 2 {
            _ = writeln!(
                body,
                "<text class=\"dim mid\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
                x + bar / 2.0,
                bottom + 15.0
            );
        }
    }
    let centre = f64::midpoint(left, right);
    _ = writeln!(
        body,
        "<text class=\"dim mid\" x=\"{centre:.1}\" y=\"{:.1}\">{}</text>",
        bottom + 29.0,
        escape::html(x_name)
    );
    Some(Plot { title: title.to_owned(), width, height, body })
}

/// Round values that cover a range: three to six of them.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let (low, high) =
        if high > low { (low, high) } else { (low - low.abs() * 0.1 - 1e-9, high + high.abs() * 0.1 + 1e-9) };
    let rough = (high - low) / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let (first, last) = ((low / step).floor(), (high / step).ceil());
    let count = (last - first).clamp(1.0, 12.0);
    (0..)
        .map(|index| f64::from(index) + first)
        .take_while(|tick| *tick <= first + count)
        .map(|tick| if tick == 0.0 { 0.0 } else { tick * step })
        .collect()
}

/// A difference of shares in points, with a sign unless it rounds to zero.
pub fn points(difference: f64, digits: usize) -> String {
    if !difference.is_finite() {
        return "∞".into();
    }
    crate::eval::points(difference, digits).replace('-', "−")
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// A number in few characters.
pub fn number(value: f64) -> String {
    let size = value.abs();
    match () {
        () if value == 0.0 => "0".into(),
        () if size >= 1e6 => format!("{:.1}M", value / 1e6),
        () if size >= 1e4 => format!("{:.1}k", value / 1e3),
        () if value.fract() == 0.0 || size >= 100.0 => format!("{value:.0}"),
        () if size >= 1.0 => format!("{value:.2}"),
        () if size >= 0.001 => format!("{value:.3}"),
        () => format!("{value:.1e}"),
    }
}

/// A line of blocks, for terminals: `▁▂▅█`. At most this many; several values become their mean.
pub fn sparkline(values: &[f64], most: usize) -> String {
    let means = means(values, most);
    let low = means.iter().copied().fold(f64::INFINITY, f64::min);
    let high = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    blocks(&means, (low, high))
}

/// The same for shares: the lowest block is 0, the highest 1.
pub fn share_sparkline(shares: &[f64], most: usize) -> String {
    blocks(&means(shares, most), (0.0, 1.0))
}

/// Means of at most this many parts.
fn means(values: &[f64], most: usize) -> Vec<f64> {
    let values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let parts = values.len().min(most);
    let mean = |index: usize| {
        let part = &values[index * values.len() / parts..(index + 1) * values.len() / parts];
        part.iter().sum::<f64>() / part.len() as f64
    };
    (0..parts).map(mean).collect()
}

fn blocks(values: &[f64], (low, high): (f64, f64)) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let block = |value: &f64| {
        let place = if high > low { (value - low) / (high - low) } else { 0.5 };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 7")]
        let index = (place * 7.0).round() as usize;
        BLOCKS[index.min(7)]
    };
    values.iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_range() {
        assert_eq!(ticks(0.0, 1.0), [0.0, 0.25, 0.5, 0.75, 1.0]);
        for (low, high) in [(-0.13, 0.48), (3.0, 3.0), (0.0, 0.0), (1e-6, 3e-5), (-5e3, 7e5)] {
            let ticks = ticks(low, high);
            assert!(ticks[0] <= low && *ticks.last().unwrap() >= high, "{low} {high} {ticks:?}");
            assert!((2..=13).contains(&ticks.len()), "{ticks:?}");
        }
    }

    #[test]
    fn plots_of_nothing_are_none_and_hostile_names_are_text() {
        assert!(lines("t", "x", &[], Scale::Percent, (400.0, 200.0)).is_none());
        assert!(forest("t", &[]).is_none());
        let label = "</text><script>x</script>".to_owned();
        let effect = Effect {
            label,
            count: 3,
            value: 0.5,
            low: f64::NEG_INFINITY,
            high: 1.0,
            tone: Tone::Good,
            is_total: false,
        };
        let file = forest("<b>", &[effect]).unwrap().file();
        assert!(
            !file.contains("<script") && !file.contains("<b>") && file.contains("&lt;/text&gt;"),
            "{file}"
        );
    }

    #[test]
    fn a_single_point_and_values_that_are_no_numbers_can_be_drawn() {
        let point = |x, y| Point { x, y, interval: None };
        let series = Series {
            name: String::new(),
            colour: "blue",
            points: vec![point(1.0, 2.0), point(2.0, f64::NAN)],
        };
        let plot = lines("t", "x", &[series], Scale::Values, (400.0, 200.0)).unwrap().inline();
        assert!(!plot.contains("NaN") && !plot.contains("inf"), "{plot}");
    }

    #[test]
    fn a_sparkline_has_at_most_as_many_blocks_as_asked() {
        assert_eq!(sparkline(&[0.0, 0.5, 1.0], 10), "▁▅█");
        assert_eq!(sparkline(&(0..100).map(f64::from).collect::<Vec<_>>(), 8), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&[1.0, 1.0], 4).chars().count(), 2);
        assert_eq!(sparkline(&[], 4), "");
    }
}
