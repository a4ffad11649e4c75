//! Bar charts as SVG.

use std::path::Path;

use plotters::prelude::*;

const WIDTH: i32 = 860;
const BAR: i32 = 18;
const PITCH: i32 = 26;
const LEFT: i32 = 190;
const RIGHT: i32 = 110;
const TOP: i32 = 46;
/// If the longest bar exceeds the shortest by this factor, a linear scale would hide the latter.
const LINEAR_SPAN: f64 = 30.0;

const LOCK_CORE: RGBColor = RGBColor(31, 119, 80);
const LIMIT: RGBColor = RGBColor(120, 120, 120);
const PEER: RGBColor = RGBColor(88, 130, 185);

/// Draws one bar per name, with its figure next to it.
pub(crate) fn bars(path: &Path, title: &str, bars: &[(&str, f64)], digits: usize) {
    let height = TOP + PITCH * bars.len() as i32 + 10;
    let area = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE).unwrap();
    let highest = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    let lowest = bars.iter().map(|bar| bar.1).filter(|value| *value > 0.0).fold(highest, f64::min);
    let logarithmic = highest > LINEAR_SPAN * lowest;
    let title = if logarithmic { format!("{title} (logarithmic)") } else { title.to_owned() };
    area.draw(&Text::new(title, (12, 10), ("sans-serif", 21).into_font())).unwrap();
    let room = f64::from(WIDTH - LEFT - RIGHT);
    let length = |value: f64| {
        let share = if value <= 0.0 {
            0.0
        } else if logarithmic {
            // Keeps the shortest bar visible.
            (value / lowest * 2.0).ln() / (highest / lowest * 2.0).ln()
        } else {
            value / highest
        };
        (share * room) as i32
    };
    for (index, (name, value)) in bars.iter().enumerate() {
        let top = TOP + PITCH * index as i32;
        let color = if name.starts_with("lock-core") {
            LOCK_CORE
        } else if matches!(*name, "raw" | "ideal") {
            LIMIT
        } else {
            PEER
        };
        let end = LEFT + length(*value);
        let corners = [(LEFT, top), (end, top + BAR)];
        area.draw(&Rectangle::new(corners, color.filled())).unwrap();
        let font = ("sans-serif", 17).into_font();
        area.draw(&Text::new((*name).to_owned(), (12, top + 2), font.clone())).unwrap();
        let figure = super::table::number(Some(*value), digits);
        area.draw(&Text::new(figure, (end + 6, top + 2), font)).unwrap();
    }
    area.present().unwrap();
}
