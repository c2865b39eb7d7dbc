//! SVG plots; the only place that knows the plotting library.

#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::element::DashedPathElement;
use plotters::prelude::*;

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Measured: a line with marks.
    Marks,
    /// A bound or another's value: a dashed line.
    Dashed,
}

/// Points to be joined by a line.
#[derive(Clone, Debug)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// x and y; gaps are simply left out.
    pub points: Vec<(f64, f64)>,
    /// Where a measurement was stopped before its end: drawn hollow, not joined, and explained in the legend.
    pub stopped: Vec<(f64, f64)>,
    /// How it is drawn.
    pub style: Style,
}

impl Series {
    /// Without points yet.
    pub fn new(name: impl Into<String>, style: Style) -> Self {
        Self::with(name, style, Vec::new())
    }

    /// With its points.
    pub fn with(name: impl Into<String>, style: Style, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.into(),
            points,
            stopped: Vec::new(),
            style,
        }
    }
}

/// One bar with the range of its measurements.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it is.
    pub label: String,
    /// Its length.
    pub value: f64,
    /// Least and greatest measurement.
    pub range: (f64, f64),
    /// Bars of one group have one colour.
    pub group: usize,
}

/// Titles of a plot.
#[derive(Clone, Copy, Debug)]
pub struct Titles<'t> {
    /// Above the plot.
    pub title: &'t str,
    /// Below, with the unit.
    pub x: &'t str,
    /// At the side, with the unit.
    pub y: &'t str,
}

// Distinct to colour-blind eyes (Okabe and Ito); the last three for plots that need so many.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
    RGBColor(190, 175, 20),
    RGBColor(110, 55, 20),
];
const FONT: &str = "sans-serif";
const SIZE: (u32, u32) = (800, 500);

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot draw: {error}")
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// Width and height that a legend takes of a plot.
const LEGEND_SHARE: (f64, f64) = (0.25, 0.35);

/// The corner where a legend hides least of the lines and marks.
fn free_corner(series: &[Series], (x_min, x_max): (f64, f64), y_max: f64) -> SeriesLabelPosition {
    const STEPS: u32 = 32;
    let hidden = |is_right: bool, is_upper: bool| {
        let is_in = |(x, y): (f64, f64)| {
            let (x, y) = ((x - x_min) / (x_max - x_min), y / y_max);
            let across = if is_right { 1.0 - x } else { x };
            let along = if is_upper { 1.0 - y } else { y };
            across < LEGEND_SHARE.0 && along < LEGEND_SHARE.1
        };
        let segments = series.iter().flat_map(|series| series.points.windows(2));
        let places = segments.flat_map(|ends| {
            (0..=STEPS).map(move |step| {
                let part = f64::from(step) / f64::from(STEPS);
                let between = |from: f64, to: f64| from + (to - from) * part;
                (between(ends[0].0, ends[1].0), between(ends[0].1, ends[1].1))
            })
        });
        let stopped = series.iter().flat_map(|series| &series.stopped).copied();
        places.chain(stopped).filter(|place| is_in(*place)).count()
    };
    let corners = [
        (SeriesLabelPosition::LowerRight, hidden(true, false)),
        (SeriesLabelPosition::UpperLeft, hidden(false, true)),
        (SeriesLabelPosition::UpperRight, hidden(true, true)),
        (SeriesLabelPosition::LowerLeft, hidden(false, false)),
    ];
    let least = corners.into_iter().min_by_key(|corner| corner.1);
    least.map_or(SeriesLabelPosition::LowerRight, |corner| corner.0)
}

/// What hollow marks are.
const STOPPED: &str = "stopped before its end";

/// Draws lines over a numeric axis, or over named places when `places` are given (x is their index then).
///
/// # Errors
/// When the file cannot be written.
pub fn lines(path: &Path, titles: Titles<'_>, places: &[String], series: &[Series]) -> Result<()> {
    let stopped = || series.iter().flat_map(|series| &series.stopped);
    let points = || {
        let joined = series.iter().flat_map(|series| &series.points);
        joined.chain(stopped())
    };
    let x_max = points().map(|p| p.0).fold(0.0, f64::max);
    let y_max = points().map(|p| p.1).fold(0.0, f64::max).max(1e-9) * 1.08;
    let x_range = if places.is_empty() {
        0.0..x_max.max(1.0) * 1.05
    } else {
        -0.3..(places.len() as f64 - 0.7)
    };
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(titles.title, (FONT, 18))
        .margin(12)
        .x_label_area_size(45)
        .y_label_area_size(75)
        .build_cartesian_2d(x_range.clone(), 0.0..y_max)
        .map_err(failed)?;
    let place = |x: &f64| match places.get(x.round().max(0.0) as usize) {
        Some(name) if (x - x.round()).abs() < 1e-6 && *x > -0.1 => name.clone(),
        Some(_) => String::new(),
        None if places.is_empty() => short(*x),
        None => String::new(),
    };
    let y_label = |y: &f64| short(*y);
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(titles.x)
        .y_desc(titles.y)
        .light_line_style(WHITE)
        .x_label_formatter(&place)
        .y_label_formatter(&y_label)
        .axis_desc_style((FONT, 15))
        .label_style((FONT, 13));
    if !places.is_empty() {
        mesh.x_labels(places.len() * 2);
    }
    mesh.draw().map_err(failed)?;
    for (index, series) in series.iter().enumerate() {
        let colour = colour(index);
        let points = || series.points.iter().copied();
        let drawn = match series.style {
            Style::Marks => chart
                .draw_series(LineSeries::new(points(), colour.stroke_width(2)))
                .map_err(failed)?,
            Style::Dashed => chart
                .draw_series(DashedLineSeries::new(
                    points(),
                    8,
                    5,
                    colour.stroke_width(2),
                ))
                .map_err(failed)?,
        };
        let named = drawn.label(&series.name);
        let ends = |(x, y): (i32, i32)| [(x, y), (x + 22, y)];
        match series.style {
            Style::Marks => {
                named.legend(move |place| PathElement::new(ends(place), colour.stroke_width(3)))
            }
            Style::Dashed => named.legend(move |place| {
                DashedPathElement::new(ends(place), 6, 4, colour.stroke_width(3))
            }),
        };
        if series.style == Style::Marks {
            let marks = points().map(|point| Circle::new(point, 4, colour.filled()));
            chart.draw_series(marks).map_err(failed)?;
        }
        let hollow = |point: &(f64, f64)| Circle::new(*point, 4, colour.stroke_width(2));
        chart
            .draw_series(series.stopped.iter().map(hollow))
            .map_err(failed)?;
    }
    if stopped().next().is_some() {
        // Its entry in the legend.
        let none = std::iter::empty::<Circle<(f64, f64), i32>>();
        chart
            .draw_series(none)
            .map_err(failed)?
            .label(STOPPED)
            .legend(|(x, y)| Circle::new((x + 11, y), 4, BLACK.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(free_corner(series, (x_range.start, x_range.end), y_max))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 13))
        .draw()
        .map_err(failed)?;
    root.present().map_err(failed)
}

/// Draws horizontal bars, the first on top, each with its value and the range of its measurements.
///
/// # Errors
/// When the file cannot be written.
pub fn bars(path: &Path, titles: Titles<'_>, bars: &[Bar]) -> Result<()> {
    let height = 90 + 26 * u32::try_from(bars.len())?.max(1);
    let max = bars.iter().map(|b| b.range.1.max(b.value));
    let max = max.fold(0.0, f64::max).max(1e-9) * 1.12;
    let count = bars.len() as f64;
    let root = SVGBackend::new(path, (SIZE.0 + 100, height)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(titles.title, (FONT, 18))
        .margin(12)
        .x_label_area_size(45)
        .y_label_area_size(260)
        .build_cartesian_2d(0.0..max, 0.0..count.max(1.0))
        .map_err(failed)?;
    let x_label = |x: &f64| short(*x);
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(0)
        .light_line_style(WHITE)
        .x_desc(titles.x)
        .x_label_formatter(&x_label)
        .axis_desc_style((FONT, 15))
        .label_style((FONT, 13))
        .draw()
        .map_err(failed)?;
    for (index, bar) in bars.iter().enumerate() {
        let bottom = count - index as f64 - 1.0;
        let middle = bottom + 0.5;
        let colour = colour(bar.group);
        let body = Rectangle::new(
            [(0.0, bottom + 0.15), (bar.value, bottom + 0.85)],
            colour.mix(0.8).filled(),
        );
        chart.draw_series([body]).map_err(failed)?;
        let whisker = PathElement::new([(bar.range.0, middle), (bar.range.1, middle)], BLACK);
        chart.draw_series([whisker]).map_err(failed)?;
        let (x, y) = chart.backend_coord(&(0.0, middle));
        let name = (FONT, 13).into_font().into_text_style(&root).pos(right());
        root.draw_text(&bar.label, &name, (x - 6, y))
            .map_err(failed)?;
        let (x, y) = chart.backend_coord(&(bar.range.1.max(bar.value), middle));
        let value = (FONT, 12).into_font().into_text_style(&root).pos(left());
        root.draw_text(&short(bar.value), &value, (x + 5, y))
            .map_err(failed)?;
    }
    root.present().map_err(failed)
}

fn right() -> plotters::style::text_anchor::Pos {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    Pos::new(HPos::Right, VPos::Center)
}

fn left() -> plotters::style::text_anchor::Pos {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    Pos::new(HPos::Left, VPos::Center)
}

/// A number in as few letters as tell it apart.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v.fract() == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TITLES: Titles<'_> = Titles {
        title: "A title",
        x: "pairs",
        y: "Mbit/s",
    };

    /// A plot is an SVG file that names its axes, its series and its places.
    #[test]
    fn a_plot_names_everything() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plot.svg");
        let series = |name: &str, style| Series::with(name, style, vec![(0.0, 10.0), (1.0, 20.0)]);
        let all = [series("ours", Style::Marks), series("bound", Style::Dashed)];
        lines(&path, TITLES, &["1+0".into(), "2+0".into()], &all).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for word in [
            "<svg", "A title", "pairs", "Mbit/s", "ours", "bound", "1+0", "2+0", "circle",
        ] {
            assert!(text.contains(word), "{word} is not in the plot");
        }
    }

    /// What was stopped is hollow and in the legend; where nothing was, the legend does not speak of it.
    #[test]
    fn stopped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plot.svg");
        let mut one = Series::with("ours", Style::Marks, vec![(1.0, 10.0), (2.0, 20.0)]);
        let drawn = |series: &Series| {
            lines(&path, TITLES, &[], std::slice::from_ref(series)).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            let hollow = text.matches("r=\"4\" opacity=\"1\" fill=\"none\"").count();
            (hollow, text.contains(STOPPED), text.contains("\n100\n"))
        };
        assert_eq!(drawn(&one), (0, false, false));
        one.stopped = vec![(3.0, 100.0)];
        // The mark and its entry in the legend, on an axis that reaches it.
        assert_eq!(drawn(&one), (2, true, true));
    }

    /// A legend keeps its usual corner while that is free, and else takes the one that hides least.
    #[test]
    fn legends_keep_clear() {
        let corner = |points: &[(f64, f64)]| {
            let series = Series::with("x", Style::Marks, points.to_vec());
            free_corner(&[series], (0.0, 1.0), 1.0)
        };
        let rising = [(0.0, 0.2), (1.0, 1.0)];
        assert!(matches!(corner(&rising), SeriesLabelPosition::LowerRight));
        let flat = [(0.0, 0.2), (1.0, 0.2)];
        assert!(matches!(corner(&flat), SeriesLabelPosition::UpperLeft));
    }

    /// Nothing measured yet, or a single point, still makes a plot.
    #[test]
    fn empty_plots() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plot.svg");
        lines(&path, TITLES, &[], &[]).unwrap();
        bars(&path, TITLES, &[]).unwrap();
        let bar = Bar {
            label: "curl".into(),
            value: 1.5,
            range: (1.0, 2.0),
            group: 0,
        };
        bars(&path, TITLES, &[bar]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("curl") && text.contains("1.50"), "{text}");
    }
}
