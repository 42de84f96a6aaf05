//! Grouped bars as SVG.

use std::path::Path;

use plotters::prelude::*;

use crate::{Failure, Result};

/// Bars: a group per configuration, a colour per entrant.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) file: String,
    pub(crate) title: String,
    pub(crate) unit: String,
    pub(crate) logarithmic: bool,
    pub(crate) groups: Vec<String>,
    series: Vec<(String, Vec<Option<f64>>)>,
}

const SIZE: (u32, u32) = (900, 420);
/// Colours that the colour-blind can tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(120, 120, 120),
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(240, 228, 66),
];

impl Chart {
    pub(crate) fn new(file: &str, title: &str, unit: &str) -> Self {
        Self {
            file: file.to_owned(),
            title: title.to_owned(),
            unit: unit.to_owned(),
            logarithmic: false,
            groups: Vec::new(),
            series: Vec::new(),
        }
    }

    /// Adds an entrant, unless nothing was measured.
    pub(crate) fn series(&mut self, name: &str, values: Vec<Option<f64>>) {
        if values.iter().any(Option::is_some) {
            self.series.push((name.to_owned(), values));
        }
    }

    /// Writes the SVG.
    pub(crate) fn draw(&self, folder: &Path) -> Result<()> {
        let path = folder.join(format!("{}.svg", self.file));
        let drawn = self.draw_to(&path);
        drawn.map_err(|error| Failure::from(format!("{}: {error}", path.display())))
    }

    fn draw_to(&self, path: &Path) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let root = SVGBackend::new(path, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (low, high) = self.range();
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(28)
            .y_label_area_size(70)
            .build_cartesian_2d(
                0.0..self.groups.len() as f64,
                self.height(low)..self.height(high),
            )?;
        let y_label = |height: &f64| super::figure(self.value(*height));
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_desc(self.unit.as_str())
            .y_label_formatter(&y_label)
            .draw()?;
        let width = 0.84 / self.series.len().max(1) as f64;
        for (number, (name, values)) in self.series.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let bars = values.iter().enumerate().filter_map(|(group, value)| {
                let left = group as f64 + 0.08 + width * number as f64;
                let top = self.height(value.filter(|value| *value > 0.0)?);
                let corners = [(left, self.height(low)), (left + width * 0.92, top)];
                Some(Rectangle::new(corners, colour.filled()))
            });
            chart
                .draw_series(bars)?
                .label(name.as_str())
                .legend(move |(x, y)| {
                    Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled())
                });
        }
        for (group, name) in self.groups.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(group as f64 + 0.5, self.height(low)));
            let style =
                TextStyle::from(("sans-serif", 14)).pos(plotters::style::text_anchor::Pos::new(
                    plotters::style::text_anchor::HPos::Center,
                    plotters::style::text_anchor::VPos::Top,
                ));
            root.draw_text(name, &style, (x, y + 8))?;
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .position(SeriesLabelPosition::UpperRight)
            .draw()?;
        root.present()?;
        Ok(())
    }

    fn range(&self) -> (f64, f64) {
        let values = self
            .series
            .iter()
            .flat_map(|(_, values)| values)
            .flatten()
            .copied();
        let positive = values.filter(|value| *value > 0.0);
        let (low, high) = positive.fold((f64::MAX, 1.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        if self.logarithmic {
            (low.min(high) / 2.0, high * 4.0)
        } else {
            (0.0, high * 1.35)
        }
    }

    /// Where a value is on the axis.
    fn height(&self, value: f64) -> f64 {
        if self.logarithmic {
            value.log10()
        } else {
            value
        }
    }

    fn value(&self, height: f64) -> f64 {
        if self.logarithmic {
            10.0_f64.powf(height)
        } else {
            height
        }
    }
}
