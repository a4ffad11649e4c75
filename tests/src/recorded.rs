//! What a recorder of the crate `metrics` was given.

use std::collections::HashMap;

use metrics::Label;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

/// The values by name and labels, with spaces in between: of a counter its increase since the last
/// look, of a gauge its level if it was set since, of a histogram the samples since.
pub type Recorded = HashMap<String, Vec<f64>>;

/// Looks at what was recorded.
///
/// # Panics
///
/// If a metric has no description.
#[must_use]
pub fn recorded(recorder: &DebuggingRecorder) -> Recorded {
    let all = recorder.snapshotter().snapshot().into_vec().into_iter();
    let named = all.map(|(key, _, described, value)| {
        let (name, labels) = key.key().clone().into_parts();
        assert!(described.is_some(), "{name:?} is not described");
        let words = [name.as_str()].into_iter().chain(labels.iter().map(Label::value));
        let values = match value {
            DebugValue::Counter(count) => vec![count as f64],
            DebugValue::Gauge(level) => vec![level.into_inner()],
            DebugValue::Histogram(samples) => samples.iter().map(|it| it.into_inner()).collect(),
        };
        (words.collect::<Vec<_>>().join(" "), values)
    });
    named.collect()
}
