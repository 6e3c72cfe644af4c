//! Small charts as SVG: values over time or over another number, and values side by side.
//!
//! A chart is a text to put into a page. Its colours are classes, so the page chooses them for
//! light and dark: `series-0` to `series-5` in the order of the series, `grid`, `axis`, `label`,
//! `mark` and `mark-label`. Its title and description are what a screen reader says.

use std::fmt::Write as _;

mod scale;

pub use scale::{Unit, short};

use scale::{Scale, log_ticks, ticks};

/// Width of a chart in its own units. A page scales it.
const WIDTH: f64 = 640.0;
/// Height of a chart.
const HEIGHT: f64 = 206.0;
/// Room for the labels of the vertical axis.
const LEFT: f64 = 52.0;
/// Room at the right, for half of the last label.
const RIGHT: f64 = 16.0;
/// Room above the highest value.
const TOP: f64 = 12.0;
/// Room for the labels of the horizontal axis, which a narrow page shows larger.
const BOTTOM: f64 = 32.0;
/// Approximate number of labels of an axis.
const TICKS: usize = 5;
/// Maximum number of labels of a logarithmic axis.
const LOG_TICKS: usize = 10;
/// Distance of a mark's text to its line, and height of a line of such text.
const MARK_GAP: f64 = 5.0;
const MARK_ROW: f64 = 15.0;
/// Number of series that have a class of their own. Others begin again with the first.
const CLASSES: usize = 6;
/// Height of a bar with its distance to the next.
const ROW: f64 = 22.0;
/// Room for the names of bars.
const NAMES: f64 = 240.0;
/// Room for the values after bars.
const VALUES: f64 = 70.0;
/// Size of a [`spark`].
const SPARK_WIDTH: f64 = 120.0;
const SPARK_HEIGHT: f64 = 20.0;
/// Maximum length of a bar's name, in characters.
const NAME_CHARS_MAX: usize = 36;

/// Values over another number.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What it shows, for a screen reader.
    pub title: String,
    /// What it shows, in a sentence, for a screen reader.
    pub description: String,
    /// How the series are arranged.
    pub layout: Layout,
    /// What the horizontal axis counts.
    pub x: Unit,
    /// How its values are spread. Where one is not above 0, the axis is linear.
    pub scale: AxisScale,
    /// Places on the horizontal axis that have a name.
    pub marks: Vec<Mark>,
    /// What the vertical axis counts. It begins at 0.
    pub y: Unit,
    /// What is drawn, from the back to the front.
    pub series: Vec<Series>,
}

/// How series are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each is a line of its own.
    Lines,
    /// Each is an area on top of those before it. They have points at the same places.
    Stacked,
}

/// How the values of an axis are spread over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisScale {
    /// Equal distances are equal differences.
    Linear,
    /// Equal distances are equal factors.
    Logarithmic,
}

/// A vertical line with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// What it says, with the value.
    pub text: String,
    /// Where it is.
    pub at: f64,
}

/// One line or area.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// Points in the order of their first number. A value that is not a number leaves a gap.
    pub points: Vec<(f64, f64)>,
}

/// Values side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// What it shows, for a screen reader.
    pub title: String,
    /// What the values count.
    pub unit: Unit,
    /// Names and their values, from top to bottom.
    pub rows: Vec<(String, f64)>,
}

impl Chart {
    /// The chart, with a legend if there are several series.
    #[must_use]
    pub fn svg(&self) -> String {
        let series = self.laid_out();
        let points = || series.iter().flatten().filter(|(x, _, y)| x.is_finite() && y.is_finite());
        // A point without a value still has its place on the axis.
        let places = series.iter().flatten().map(|(x, ..)| *x);
        let places = places.chain(self.marks.iter().map(|mark| mark.at));
        let (mut low, mut high) = places
            .filter(|x| x.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let top = points().fold(0.0_f64, |top, (.., y)| top.max(*y));
        let is_logarithmic = self.scale == AxisScale::Logarithmic && low > 0.0;
        let (from, to) = ((low, high), (LEFT, WIDTH - RIGHT));
        let (x, across) = match is_logarithmic {
            true => (Scale::logarithmic(from, to), log_ticks(low, high, LOG_TICKS)),
            false => (Scale::new(from, to), ticks(low, high, TICKS, self.x)),
        };
        let up = ticks(0.0, if top > 0.0 { top } else { 1.0 }, TICKS, self.y);
        let highest = up.last().copied().unwrap_or(1.0).max(top);
        let y = Scale::new((0.0, highest), (HEIGHT - BOTTOM, TOP));

        let mut out = opening(HEIGHT, &self.title, &self.described());
        for tick in &up {
            let at = y.of(*tick);
            let _ = write!(
                out,
                r#"<line class="grid" x1="{LEFT}" x2="{}" y1="{at:.1}" y2="{at:.1}"/><text class="label" x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                escaped(&self.y.label(*tick, highest)),
            );
        }
        for tick in across {
            let _ = write!(
                out,
                r#"<text class="label" x="{:.1}" y="{}" text-anchor="middle">{}</text>"#,
                x.of(tick),
                HEIGHT - 6.0,
                escaped(&self.x.label(tick, high - low)),
            );
        }
        // The first series of a stack lies behind: areas are drawn from the highest to the lowest.
        for (index, points) in series.iter().enumerate().rev() {
            self.draw(&mut out, index, points, (&x, &y));
        }
        self.draw_marks(&mut out, &x);
        out.push_str("</svg>");
        if self.series.len() > 1 {
            legend(&mut out, &self.series);
        }
        out
    }

    /// Its description, with the marks: what a screen reader says.
    fn described(&self) -> String {
        if self.marks.is_empty() {
            return self.description.clone();
        }
        let marks: Vec<&str> = self.marks.iter().map(|mark| mark.text.as_str()).collect();
        format!("{} Marked: {}.", self.description, marks.join(", "))
    }

    /// Each text has a row of its own, so that marks may be close to each other, and is on the side
    /// that has more room.
    fn draw_marks(&self, out: &mut String, x: &Scale) {
        let mut row = TOP + MARK_ROW;
        for mark in self.marks.iter().filter(|mark| mark.at.is_finite()) {
            let at = x.of(mark.at);
            let is_left = at > (LEFT + WIDTH - RIGHT) / 2.0;
            let (text_at, anchor) =
                if is_left { (at - MARK_GAP, "end") } else { (at + MARK_GAP, "start") };
            let _ = write!(
                out,
                r#"<line class="mark" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{}"/><text class="label mark-label" x="{text_at:.1}" y="{row:.1}" text-anchor="{anchor}">{}</text>"#,
                HEIGHT - BOTTOM,
                escaped(&mark.text),
            );
            row += MARK_ROW;
        }
    }

    /// Where each point begins and ends: `(x, lower y, upper y)`.
    fn laid_out(&self) -> Vec<Vec<(f64, f64, f64)>> {
        let mut below: Vec<f64> = Vec::new();
        let mut laid_out = Vec::with_capacity(self.series.len());
        for series in &self.series {
            let mut points = Vec::with_capacity(series.points.len());
            for (index, (x, y)) in series.points.iter().enumerate() {
                if self.layout == Layout::Lines {
                    points.push((*x, 0.0, *y));
                    continue;
                }
                if below.len() <= index {
                    below.resize(index + 1, 0.0);
                }
                let lower = below.get(index).copied().unwrap_or(0.0);
                points.push((*x, lower, lower + y));
                if y.is_finite() {
                    below.get_mut(index).into_iter().for_each(|below| *below = lower + y);
                }
            }
            laid_out.push(points);
        }
        laid_out
    }

    fn draw(
        &self,
        out: &mut String,
        index: usize,
        points: &[(f64, f64, f64)],
        to: (&Scale, &Scale),
    ) {
        let (x, y) = to;
        let class = index % CLASSES;
        let mut path = String::new();
        for run in points.split(|(x, _, y)| !x.is_finite() || !y.is_finite()) {
            let mut command = 'M';
            for (at, _, value) in run {
                let _ = write!(path, "{command}{:.1} {:.1}", x.of(*at), y.of(*value));
                command = 'L';
            }
            if self.layout == Layout::Stacked {
                for (at, lower, _) in run.iter().rev() {
                    let _ = write!(path, "L{:.1} {:.1}", x.of(*at), y.of(*lower));
                }
                path.push_str(if run.is_empty() { "" } else { "Z" });
            }
        }
        let kind = if self.layout == Layout::Stacked { "area" } else { "line" };
        let _ = write!(out, r#"<path class="{kind} series-{class}" d="{path}"/>"#);
    }
}

impl Bars {
    /// The chart.
    #[must_use]
    pub fn svg(&self) -> String {
        let rows = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        let longest = self.rows.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let scale = Scale::new((0.0, longest), (NAMES, WIDTH - VALUES));
        let say =
            |(name, value): &(String, f64)| format!("{name}: {}", self.unit.label(*value, longest));
        let description = self.rows.iter().map(say).collect::<Vec<_>>().join(", ");
        let mut out = opening(ROW * f64::from(rows), &self.title, &description);
        let mut at = 0.0;
        for (name, value) in &self.rows {
            let end = scale.of(*value);
            let _ = write!(
                out,
                r#"<text class="label" x="{}" y="{:.1}" text-anchor="end">{}</text><rect class="bar series-0" x="{NAMES}" y="{:.1}" width="{:.1}" height="{}"/><text class="label" x="{:.1}" y="{:.1}">{}</text>"#,
                NAMES - 6.0,
                at + 15.0,
                escaped(&cut(name)),
                at + 3.0,
                (end - NAMES).max(0.0),
                ROW - 6.0,
                end + 6.0,
                at + 15.0,
                escaped(&self.unit.label(*value, longest)),
            );
            at += ROW;
        }
        out.push_str("</svg>");
        out
    }
}

fn opening(height: f64, title: &str, description: &str) -> String {
    format!(
        r#"<svg class="picture" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"><title>{}</title><desc>{}</desc>"#,
        escaped(title),
        escaped(description),
    )
}

fn legend(out: &mut String, series: &[Series]) {
    out.push_str(r#"<ul class="legend">"#);
    for (index, series) in series.iter().enumerate() {
        let _ = write!(
            out,
            r#"<li><span class="swatch series-{}"></span>{}</li>"#,
            index % CLASSES,
            escaped(&series.name)
        );
    }
    out.push_str("</ul>");
}

fn cut(name: &str) -> String {
    if name.chars().count() <= NAME_CHARS_MAX {
        return name.to_owned();
    }
    name.chars().take(NAME_CHARS_MAX - 1).chain(['\u{2026}']).collect()
}

/// A small area without axes, for a line of a table that says the same in numbers. A screen reader
/// passes over it.
#[must_use]
pub fn spark(values: &[f64]) -> String {
    let count = u32::try_from(values.len().max(2)).map_or(2.0, f64::from);
    let top = values.iter().copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    let x = Scale::new((0.0, count - 1.0), (0.0, SPARK_WIDTH));
    let y = Scale::new((0.0, if top > 0.0 { top } else { 1.0 }), (SPARK_HEIGHT - 1.0, 1.0));
    let mut line = String::new();
    let mut at = 0.0;
    for value in values {
        let command = if line.is_empty() { 'M' } else { 'L' };
        let value = if value.is_finite() { *value } else { 0.0 };
        let _ = write!(line, "{command}{:.1} {:.1}", x.of(at), y.of(value));
        at += 1.0;
    }
    let area = match line.is_empty() {
        true => String::new(),
        false => format!("{line}L{SPARK_WIDTH} {SPARK_HEIGHT}L0 {SPARK_HEIGHT}Z"),
    };
    format!(
        r#"<svg class="spark" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" preserveAspectRatio="none" aria-hidden="true"><path class="spark-area" d="{area}"/><path class="spark-line" d="{line}"/></svg>"#
    )
}

/// Text for a page: no character of it can end an element or an attribute. What XML can't hold
/// becomes U+FFFD.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' => out.push(' '),
            character if character.is_control() => out.push('\u{fffd}'),
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(layout: Layout, values: &[&[f64]]) -> Chart {
        let series = |values: &&[f64]| Series {
            name: "a <b>".into(),
            points: values.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect(),
        };
        Chart {
            title: "\"Requests\" & more".into(),
            description: "two".into(),
            layout,
            x: Unit::Count,
            scale: AxisScale::Linear,
            marks: Vec::new(),
            y: Unit::Count,
            series: values.iter().map(series).collect(),
        }
    }

    /// The points of the path of a series.
    fn path(svg: &str, series: usize) -> Vec<(f64, f64)> {
        let from = svg.find(&format!("series-{series}\" d=\"")).unwrap();
        let text = svg[from..].split('"').nth(2).unwrap();
        text.split(['M', 'L', 'Z'])
            .filter(|point| !point.is_empty())
            .map(|point| point.split_once(' ').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect()
    }

    #[test]
    fn a_line_goes_through_its_points() {
        let svg = chart(Layout::Lines, &[&[0.0, 50.0, 100.0]]).svg();
        let bottom = HEIGHT - BOTTOM;
        let middle = (TOP + bottom) / 2.0;
        let across = (LEFT + WIDTH - RIGHT) / 2.0;
        assert_eq!(
            path(&svg, 0),
            [(LEFT, bottom), (across, middle), (WIDTH - RIGHT, TOP)],
            "{svg}"
        );
    }

    #[test]
    fn a_logarithmic_axis_shows_small_values_as_wide_as_large_ones() {
        let mut chart = chart(Layout::Lines, &[&[]]);
        chart.scale = AxisScale::Logarithmic;
        chart.series[0].points = vec![(1.0, 1.0), (10.0, 1.0), (100.0, 1.0)];
        let svg = chart.svg();
        let places: Vec<f64> = path(&svg, 0).iter().map(|(x, _)| *x).collect();
        assert_eq!(places, [LEFT, (LEFT + WIDTH - RIGHT) / 2.0, WIDTH - RIGHT], "{svg}");
        for tick in [">1<", ">2<", ">5<", ">10<", ">20<", ">50<", ">100<"] {
            assert!(svg.contains(&format!(r#"text-anchor="middle"{tick}/text>"#)), "{tick}: {svg}");
        }
        // 0 has no place on such an axis.
        chart.series[0].points[0].0 = 0.0;
        let places: Vec<f64> = path(&chart.svg(), 0).iter().map(|(x, _)| *x).collect();
        assert_eq!(places, [LEFT, 109.2, WIDTH - RIGHT]);
    }

    #[test]
    fn a_mark_has_a_line_and_says_what_it_is() {
        let mut chart = chart(Layout::Lines, &[&[0.0, 50.0, 100.0]]);
        chart.marks =
            vec![Mark { text: "now <1>".into(), at: 0.5 }, Mark { text: "then 4".into(), at: 4.0 }];
        let svg = chart.svg();
        assert!(svg.contains("<desc>two Marked: now &lt;1&gt;, then 4.</desc>"), "{svg}");
        assert_eq!(svg.matches(r#"<line class="mark""#).count(), 2, "{svg}");
        assert!(svg.contains(r#"text-anchor="start">now &lt;1&gt;</text>"#), "{svg}");
        // One that lies beyond all points makes the axis longer.
        let right = WIDTH - RIGHT;
        assert!(svg.contains(&format!(r#"<line class="mark" x1="{right:.1}""#)), "{svg}");
        assert!(svg.contains(r#"text-anchor="end">then 4</text>"#), "{svg}");
        let none = Mark { text: "never".into(), at: f64::NAN };
        chart.marks = vec![none];
        assert!(!chart.svg().contains("NaN"));
    }

    #[test]
    fn areas_lie_on_each_other() {
        let svg = chart(Layout::Stacked, &[&[20.0, 20.0], &[80.0, 30.0]]).svg();
        let y = |value: f64| {
            let at = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / 100.0;
            (at * 10.0).round() / 10.0
        };
        let (first, last) = (LEFT, WIDTH - RIGHT);
        let upper = [(first, y(100.0)), (last, y(50.0)), (last, y(20.0)), (first, y(20.0))];
        assert_eq!(path(&svg, 1), upper, "{svg}");
        assert_eq!(path(&svg, 0).first(), Some(&(first, y(20.0))));
    }

    #[test]
    fn a_value_that_is_not_a_number_leaves_a_gap() {
        let svg = chart(Layout::Lines, &[&[1.0, f64::NAN, 3.0, 4.0]]).svg();
        assert_eq!(svg.matches('M').count(), 2, "{svg}");
        assert!(!svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn an_area_has_gaps_too_and_what_lies_on_it_sinks() {
        let svg = chart(Layout::Stacked, &[&[f64::NAN, 50.0], &[100.0, 50.0]]).svg();
        assert_eq!(path(&svg, 0).len(), 2, "one point and its foot: {svg}");
        assert_eq!(path(&svg, 1).first(), Some(&(LEFT, TOP)));
        assert_eq!(path(&svg, 1).get(1), Some(&(WIDTH - RIGHT, TOP)));
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        for values in [&[][..], &[&[][..]][..], &[&[0.0][..]][..], &[&[f64::INFINITY][..]][..]] {
            let svg = chart(Layout::Stacked, values).svg();
            assert!(
                svg.starts_with("<svg") && !svg.contains("NaN") && !svg.contains("inf"),
                "{svg}"
            );
        }
        let bars = Bars { title: "none".into(), unit: Unit::Count, rows: Vec::new() };
        assert!(bars.svg().ends_with("</svg>"));
    }

    #[test]
    fn a_point_without_a_value_still_lengthens_the_axis() {
        let mut chart = chart(Layout::Lines, &[&[5.0, 5.0]]);
        if let Some(series) = chart.series.first_mut() {
            series.points.insert(0, (-1.0, f64::NAN));
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        assert_eq!(path(&chart.svg(), 0).first().map(|point| point.0), Some(middle));
    }

    #[test]
    fn a_spark_spans_its_width_and_is_never_broken() {
        let svg = spark(&[0.0, 2.0, f64::NAN]);
        assert!(svg.contains(r#"class="spark-line" d="M0.0 19.0L60.0 1.0L120.0 19.0""#), "{svg}");
        for values in [&[][..], &[0.0][..], &[f64::INFINITY][..]] {
            let svg = spark(values);
            assert!(
                svg.ends_with("</svg>") && !svg.contains("NaN") && !svg.contains("inf"),
                "{svg}"
            );
        }
    }

    #[test]
    fn text_ends_no_element() {
        let svg = chart(Layout::Lines, &[&[1.0], &[2.0]]).svg();
        assert!(svg.contains("<title>&quot;Requests&quot; &amp; more</title>"), "{svg}");
        assert!(svg.contains("</span>a &lt;b&gt;</li>"), "{svg}");
        assert_eq!(escaped("a\u{0}\nb'"), "a\u{fffd} b&#39;");
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let rows = vec![("x".repeat(80), 200.0), ("b".into(), 50.0), ("c".into(), 0.0)];
        let svg = Bars { title: "keys".into(), unit: Unit::Count, rows }.svg();
        let widths: Vec<f64> = svg
            .split("width=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect();
        let whole = WIDTH - VALUES - NAMES;
        assert_eq!(widths, [whole, whole / 4.0, 0.0], "{svg}");
        assert!(svg.contains('\u{2026}') && svg.contains("b: 50"), "{svg}");
    }
}
