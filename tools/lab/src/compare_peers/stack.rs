//! A stack: one way in which a peer, or doorbell, carries messages, and how it is measured.

use doorbell_tools::process::{Runner, Stop};

use super::load::{Figure, Kind, Load};
use crate::compare_peers::args::Family;
use crate::place::{Place, Setting};

/// What a stack is measured with.
pub(crate) struct Lab<'a> {
    pub(crate) runner: &'a Runner,
    pub(crate) place: &'a Place<'a>,
    pub(crate) setting: Setting,
}

/// A stack that can be measured.
pub(crate) trait Stack {
    /// Its name, with what carries the messages.
    fn name(&self) -> &str;

    /// Returns the project that it belongs to; none for doorbell itself, also where another project's program
    /// runs over doorbell's provider.
    fn family(&self) -> Option<Family>;

    /// Returns how it is measured, in a few words.
    fn how(&self) -> String;

    /// Returns why it does not report a kind of load; `None` when it does.
    fn unsupported(&self, kind: Kind) -> Option<&'static str>;

    /// Measures one turn.
    fn measure(&self, lab: &Lab<'_>, load: &Load) -> Result<Vec<Figure>, Stop>;
}

/// Returns the rows of all the sizes of the load, in their order, or the reason why not.
pub(crate) fn complete(name: &str, load: &Load, mut figures: Vec<Figure>) -> Result<Vec<Figure>, Stop> {
    figures.retain(|figure| load.sizes.contains(&figure.bytes));
    figures.sort_by_key(|figure| load.sizes.iter().position(|bytes| *bytes == figure.bytes));
    let told = |figure: &Figure| match load.kind {
        Kind::Latency | Kind::Put | Kind::Am => figure.half_rtt_ns.mean.is_some_and(is_sane),
        Kind::Stream | Kind::Blocking => figure.messages_per_second.is_some_and(is_sane),
        Kind::Overlap => figure.overlap.is_some_and(|times| is_sane(times.both)),
    };
    let lacks = load.sizes.iter().find(|bytes| {
        !figures
            .iter()
            .any(|figure| figure.bytes == **bytes && told(figure))
    });
    match lacks {
        Some(bytes) => Err(Stop::Failed(format!(
            "{name} ended well without a readable figure for messages of {bytes} bytes"
        ))),
        None => Ok(figures),
    }
}

/// A time or a rate that can be.
fn is_sane(value: f64) -> bool {
    value.is_finite() && value > 0.0
}
