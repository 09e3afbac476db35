//! What memory windows of the port are worth, tried on the port itself: exposed memory is as safe as they
//! are.

use doorbell_fabric::error::RailError;
use doorbell_verbs::{RcRail, VerbsConfig, WindowFacts};

use super::{At, Fix, Walk};

/// Opens a rail of connections, and tries its windows.
pub(super) fn steps(walk: &mut Walk, at: &At<'_>, config: &VerbsConfig) {
    let examined = RcRail::open(at.name, config).map(|mut rail| rail.examine_windows());
    judged(walk, examined);
}

/// What was found. Nothing of it keeps a rail from being used.
pub(super) fn judged(walk: &mut Walk, examined: Result<Option<WindowFacts>, RailError>) {
    let facts = match examined {
        Ok(Some(facts)) => facts,
        Ok(None) => {
            return walk.note(
                "windows",
                "the port binds no memory windows of type 2B: what is exposed to a peer is registered in a protection \
                 domain of that peer",
                vec![Fix::hand("each exposure is a registration, which costs some microseconds more")],
            );
        }
        // The step of the connection has the reason and what to do.
        Err(error) => {
            let saw = format!("a rail of connections does not open, so none was tried: {error}");
            return walk.untried("windows", saw, Vec::new());
        }
    };
    let mut saw = Vec::new();
    let mut fixes = Vec::new();
    let mut judge = |is_good: bool, good: &'static str, bad: &'static str, means: &'static str| {
        saw.push(if is_good { good } else { bad });
        if !is_good {
            fixes.push(Fix::hand(means));
        }
    };
    judge(
        facts.refuses_others,
        "a key is refused over another queue pair",
        "a key is good over another queue pair, too",
        "a peer that learns the key of another one's memory can use it: expose nothing to ranks that do not trust each \
         other",
    );
    judge(
        facts.checks_range,
        "the range of a window is checked",
        "the range of a window is not checked",
        "beneath each window lie exactly the exposed bytes, so nothing else is reached; exposures of one region are \
         registered each by itself",
    );
    judge(
        facts.refuses_ended,
        "a key that has ended is refused",
        "a key is good after its end",
        "memory that is withdrawn can be reached until its registration ends: expose what is not used otherwise",
    );
    let saw = format!("tried on the port itself: {}", saw.join("; "));
    match fixes.is_empty() {
        true => walk.ok("windows", saw),
        false => walk.note("windows", saw, fixes),
    }
}
