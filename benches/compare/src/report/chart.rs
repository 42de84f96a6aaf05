//! Grouped bars as SVG. An entrant has the same colour in every chart; the legend is beside the bars.

use std::path::Path;

use plotters::prelude::*;

use crate::{Failure, Result};

/// Bars: a group per configuration, a colour per entrant.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) file: String,
    pub(crate) title: String,
    pub(crate) unit: String,
    pub(crate) groups: Vec<String>,
    series: Vec<(String, Vec<Option<f64>>)>,
}

const SIZE: (u32, u32) = (1000, 420);
/// The width of the legend.
const LEGEND: u32 = 230;
/// Colours that the colour-blind can distinguish (Okabe and Ito), each behind it a darker one.
const COLOURS: [RGBColor; 12] = [
    RGBColor(120, 120, 120),
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(153, 102, 0),
    RGBColor(0, 158, 115),
    RGBColor(0, 95, 69),
    RGBColor(204, 121, 167),
    RGBColor(130, 65, 100),
    RGBColor(213, 94, 0),
    RGBColor(86, 180, 233),
    RGBColor(240, 228, 66),
    RGBColor(20, 20, 20),
];

/// The colour of each entrant: the same in all charts, in the order of the first that shows them.
#[derive(Debug)]
pub(crate) struct Colours(Vec<String>);

impl Colours {
    /// The entrants of `charts`.
    pub(crate) fn of(known: &[&str], charts: &[Chart]) -> Self {
        let shown = charts.iter().flat_map(|chart| &chart.series);
        let shown = shown.map(|(name, _)| name.as_str());
        let mut names: Vec<String> = Vec::new();
        for name in known.iter().copied().chain(shown) {
            if !names.iter().any(|there| there == name) {
                names.push(name.to_owned());
            }
        }
        Self(names)
    }

    fn colour(&self, name: &str) -> RGBColor {
        let number = self.0.iter().position(|known| known == name);
        COLOURS[number.unwrap_or(COLOURS.len() - 1) % COLOURS.len()]
    }
}

impl Chart {
    pub(crate) fn new(file: &str, title: &str, unit: &str) -> Self {
        Self {
            file: file.to_owned(),
            title: title.to_owned(),
            unit: unit.to_owned(),
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
    pub(crate) fn draw(&self, folder: &Path, colours: &Colours) -> Result<()> {
        let path = folder.join(format!("{}.svg", self.file));
        let drawn = self.draw_to(&path, colours);
        drawn.map_err(|error| Failure::from(format!("{}: {error}", path.display())))
    }

    fn draw_to(
        &self,
        path: &Path,
        colours: &Colours,
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let whole = SVGBackend::new(path, SIZE).into_drawing_area();
        whole.fill(&WHITE)?;
        let (root, legend) = whole.split_horizontally(SIZE.0 - LEGEND);
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(28)
            .y_label_area_size(76)
            .build_cartesian_2d(0.0..self.groups.len() as f64, 0.0..self.highest() * 1.08)?;
        let y_label = |height: &f64| super::figure(*height);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .max_light_lines(0)
            .y_desc(self.unit.as_str())
            .y_label_formatter(&y_label)
            .draw()?;
        let width = 0.84 / self.series.len().max(1) as f64;
        for (number, (name, values)) in self.series.iter().enumerate() {
            let colour = colours.colour(name);
            let bars = values.iter().enumerate().filter_map(|(group, value)| {
                let left = group as f64 + 0.08 + width * number as f64;
                let top = value.filter(|value| *value > 0.0)?;
                let corners = [(left, 0.0), (left + width * 0.92, top)];
                Some(Rectangle::new(corners, colour.filled()))
            });
            chart.draw_series(bars)?;
            let y = 56 + 22 * i32::try_from(number)?;
            let sample = Rectangle::new([(4, y), (18, y + 12)], colour.filled());
            legend.draw(&sample)?;
            legend.draw(&Text::new(name.as_str(), (26, y), ("sans-serif", 14)))?;
        }
        for (group, name) in self.groups.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(group as f64 + 0.5, 0.0));
            let style =
                TextStyle::from(("sans-serif", 14)).pos(plotters::style::text_anchor::Pos::new(
                    plotters::style::text_anchor::HPos::Center,
                    plotters::style::text_anchor::VPos::Top,
                ));
            root.draw_text(name, &style, (x, y + 8))?;
        }
        whole.present()?;
        Ok(())
    }

    fn highest(&self) -> f64 {
        let values = self.series.iter().flat_map(|(_, values)| values);
        values.flatten().copied().fold(1.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_no_minor_grid_lines() {
        let mut chart = Chart::new("chart", "A chart", "pairs");
        chart.groups.push("1 task".to_owned());
        chart.series("watchlock", vec![Some(1000.0)]);
        let folder = std::env::temp_dir().join(format!("chart-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let colours = Colours::of(&[], std::slice::from_ref(&chart));
        chart.draw(&folder, &colours).expect("it is drawn");
        let drawn = std::fs::read_to_string(folder.join("chart.svg")).expect("a chart");
        std::fs::remove_dir_all(&folder).expect("it can be removed");
        assert_eq!(drawn.matches("opacity=\"0.1\"").count(), 0);
        assert!(drawn.contains("opacity=\"0.2\""), "it has major ones");
    }
}
