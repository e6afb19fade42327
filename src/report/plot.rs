//! Plots as SVG, written by hand: the same numbers give the same bytes, and nothing is loaded.

use std::fmt::Write;

use super::{Tone, escape};
use crate::text;

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
    /// For a page that has [`STYLE`]. It keeps its size, so that its type is readable on a phone, where it scrolls.
    pub fn inline(&self) -> String {
        let Self { title, width, height, body } = self;
        let title = escape::html(title);
        format!(
            "<svg class=\"plot\" role=\"img\" aria-label=\"{title}\" width=\"{width:.0}\" height=\"{height:.0}\">{body}</svg>"
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

/// A point of a chart, with the interval of y.
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

/// The title of a plot.
fn title_at(x: f64, y: f64, title: &str) -> String {
    format!("<text class=\"title\" x=\"{x:.0}\" y=\"{y:.0}\">{}</text>\n", escape::html(title))
}

/// A horizontal line with its value at the left.
fn grid_line(left: f64, right: f64, y: f64, label: &str) -> String {
    format!(
        "<line class=\"grid\" x1=\"{left:.0}\" x2=\"{right:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"dim end\" x=\"{:.0}\" y=\"{:.1}\">{label}</text>\n",
        left - 6.0,
        y + 4.0
    )
}

/// A text below the x axis.
fn below(x: f64, y: f64, text: &str) -> String {
    format!("<text class=\"dim mid\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape::html(text))
}

/// A chart of a line over iterations or steps. None without points.
pub fn line(
    title: &str,
    x_name: &str,
    points: &[Point],
    scale: Scale,
    (width, height): (f64, f64),
) -> Option<Plot> {
    let points: Vec<&Point> = points.iter().filter(|point| point.y.is_finite()).collect();
    let (first, last) = range(points.iter().map(|point| point.x));
    if !first.is_finite() {
        return None;
    }
    let (low, high) = range(points.iter().map(|point| point.y));
    let ticks = match scale {
        Scale::Percent => vec![0.0, 0.25, 0.5, 0.75, 1.0],
        Scale::Values => ticks(low, high),
    };
    let (low, high) = (ticks[0], *ticks.last().unwrap_or(&1.0));
    let (left, top, right, bottom) = (52.0, 30.0, width - 14.0, height - 34.0);
    let x_of = |x: f64| left + (right - left) * if last > first { (x - first) / (last - first) } else { 0.5 };
    let y_of = |y: f64| bottom - (bottom - top) * ((y.clamp(low, high) - low) / (high - low));
    let at = |x: f64, y: f64| format!("{:.1},{:.1}", x_of(x), y_of(y));
    let mut body = title_at(8.0, 16.0, title);
    for tick in &ticks {
        let label = if scale == Scale::Percent { percent(*tick) } else { number(*tick) };
        body += &grid_line(left, right, y_of(*tick), &label);
    }
    let banded: Vec<(f64, (f64, f64))> =
        points.iter().filter_map(|point| Some((point.x, point.interval?))).collect();
    if !banded.is_empty() {
        let upper = banded.iter().map(|(x, (_, high))| at(*x, *high));
        let lower = banded.iter().rev().map(|(x, (low, _))| at(*x, *low));
        let outline: Vec<String> = upper.chain(lower).collect();
        _ = writeln!(body, "<polygon class=\"blue band\" points=\"{}\"/>", outline.join(" "));
    }
    let line: Vec<String> = points.iter().map(|point| at(point.x, point.y)).collect();
    _ = writeln!(body, "<polyline class=\"blue stroke\" points=\"{}\"/>", line.join(" "));
    if line.len() <= 64 {
        for at in &line {
            let (x, y) = at.split_once(',').unwrap_or_default();
            _ = write!(body, "<circle class=\"blue fill\" cx=\"{x}\" cy=\"{y}\" r=\"2.2\"/>");
        }
        body.push('\n');
    }
    let mut marks = vec![first, first + ((last - first) / 2.0).floor(), last];
    marks.dedup();
    for mark in marks {
        body += &below(x_of(mark), bottom + 15.0, &format!("{mark:.0}"));
    }
    _ = writeln!(body, "{}", below(f64::midpoint(left, right), bottom + 29.0, x_name));
    Some(Plot { title: title.to_owned(), width, height, body })
}

/// The least and the greatest value; infinities without values.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
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
    let mut body = title_at(8.0, 18.0, title);
    for tick in &ticks {
        let (x, class) = (x_of(*tick), if *tick == 0.0 { "zero" } else { "grid" });
        let label = below(x, bottom + 16.0, &points(*tick, 0));
        _ = writeln!(
            body,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.0}\" y2=\"{bottom:.0}\"/>{label}"
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
pub struct StackPart {
    pub name: &'static str,
    pub colour: &'static str,
    /// One value per bar.
    pub values: Vec<f64>,
}

/// Bars of shares, stacked from the bottom. None without bars.
pub fn stacks(
    title: &str,
    x_name: &str,
    labels: &[u32],
    parts: &[StackPart],
    size: (f64, f64),
) -> Option<Plot> {
    let (width, height) = size;
    let (left, top, right, bottom) = (52.0, 48.0, width - 14.0, height - 34.0);
    if labels.is_empty() {
        return None;
    }
    let mut body = title_at(8.0, 16.0, title);
    let mut x = left;
    for StackPart { name, colour, .. } in parts {
        _ = writeln!(
            body,
            "<rect class=\"{colour} fill\" x=\"{x:.0}\" y=\"26\" width=\"10\" height=\"10\"/><text class=\"dim\" x=\"{:.0}\" y=\"35\">{name}</text>",
            x + 14.0
        );
        x += 32.0 + 6.4 * name.len() as f64;
    }
    for tick in [0.0, 0.5, 1.0] {
        body += &grid_line(left, right, bottom - (bottom - top) * tick, &percent(tick));
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
            _ = writeln!(body, "{}", below(x + bar / 2.0, bottom + 15.0, &label.to_string()));
        }
    }
    _ = writeln!(body, "{}", below(f64::midpoint(left, right), bottom + 29.0, x_name));
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
    format!("{} %", text::percent(share, 0))
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
    blocks(&means, range(means.iter().copied()))
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
        assert!(line("t", "x", &[], Scale::Percent, (400.0, 200.0)).is_none());
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
        let points = [point(1.0, 2.0), point(2.0, f64::NAN)];
        let plot = line("t", "x", &points, Scale::Values, (400.0, 200.0)).unwrap().inline();
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
