//! Plots as SVG.

use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

const SIZE: (u32, u32) = (560, 380);
const FONT: &str = "sans-serif";

/// The colours of series, told apart also by those who see few colours (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// What a plot shows to the right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum XAxis {
    /// Quantiles as numbers of nines.
    Percentile,
    /// Numbers from zero, of this.
    Number(&'static str),
}

/// What a plot shows upwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum YAxis {
    /// Latency, on a logarithmic axis.
    Microseconds,
    /// Numbers from zero, of this.
    Number(&'static str),
}

/// A line of a plot.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// A plot.
#[derive(Clone, Debug)]
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) x: XAxis,
    pub(super) y: YAxis,
    pub(super) series: Vec<Series>,
}

/// Returns the label of a quantile that is given as a number of nines.
fn percentile(nines: f64) -> String {
    let percent = 100.0 * (1.0 - 0.1f64.powf(nines));
    let places = (nines.round() as usize).saturating_sub(2);
    format!("{percent:.places$} %")
}

impl Plot {
    /// Returns the plot as an SVG element.
    pub(super) fn draw(&self) -> anyhow::Result<String> {
        let ys = self.series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
        let top = ys.clone().fold(1.0, f64::max);
        // Room for the names of the series above them.
        let names = self.series.len() as f64;
        match self.y {
            YAxis::Microseconds => {
                let bottom = ys.filter(|y| *y > 0.0).fold(top, f64::min) * 0.8;
                let room = (top / bottom).powf(0.05 + 0.06 * names);
                self.draw_over((bottom..top * room).log_scale(), "µs")
            }
            YAxis::Number(what) => self.draw_over(0.0..top * (1.1 + 0.05 * names), what),
        }
    }

    fn width(&self) -> Range<f64> {
        let xs = self.series.iter().flat_map(|series| series.points.iter().map(|point| point.0));
        let right = xs.fold(0.0, f64::max);
        match self.x {
            XAxis::Percentile => 0.0..right.max(1.0),
            XAxis::Number(_) => 0.0..(right * 1.05).max(1.0),
        }
    }

    fn draw_over<Y>(&self, height: Y, what: &str) -> anyhow::Result<String>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            root.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&root)
                .caption(&self.title, (FONT, 15))
                .margin(10)
                .x_label_area_size(36)
                .y_label_area_size(60)
                .build_cartesian_2d(self.width(), height)?;
            let number = |x: &f64| format!("{x:.0}");
            let quantile = |x: &f64| percentile(*x);
            let mut mesh = chart.configure_mesh();
            mesh.y_desc(what).light_line_style(WHITE).x_labels(6);
            match self.x {
                XAxis::Percentile => mesh.x_desc("percentile").x_label_formatter(&quantile),
                XAxis::Number(what) => mesh.x_desc(what).x_label_formatter(&number),
            };
            mesh.draw()?;
            for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
                chart
                    .draw_series(LineSeries::new(series.points.iter().copied(), colour.stroke_width(2)))?
                    .label(&series.name)
                    .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], *colour));
                if series.points.len() < 20 {
                    let dots = series.points.iter().map(|&point| Circle::new(point, 3, colour.filled()));
                    chart.draw_series(dots)?;
                }
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .background_style(WHITE.mix(0.8))
                .label_font((FONT, 11))
                .draw()?;
            root.present()?;
        }
        Ok(svg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_have_as_many_nines_as_they_are_given() {
        let labels = [0.0, 1.0, 2.0, 3.0, 4.0].map(percentile);
        assert_eq!(labels, ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
    }

    #[test]
    fn a_plot_is_an_element_with_its_title_and_its_series() {
        for y in [YAxis::Microseconds, YAxis::Number("requests")] {
            let points = vec![(0.0, 10.0), (1.0, 20.0), (2.5, 300.0)];
            let series = vec![Series { name: "service".to_owned(), points }];
            let plot = Plot { title: "one & two".to_owned(), x: XAxis::Percentile, y, series };
            let svg = plot.draw().unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            assert!(svg.contains("service") && svg.contains("one &amp; two"), "{svg}");
            assert!(!svg.contains("href"), "nothing is loaded: {svg}");
        }
    }

    #[test]
    fn a_plot_without_points_is_drawn_too() {
        let series = vec![Series { name: "none".to_owned(), points: Vec::new() }];
        let x = XAxis::Number("shards");
        let plot = Plot { title: String::new(), x, y: YAxis::Microseconds, series };
        assert!(plot.draw().unwrap().contains("<svg"));
    }
}
