//! Discovery: each interface of this machine as a candidate, with what was found out about it, without
//! opening anything.

use doorbell_fabric::discover::{Candidate, Driver};
use doorbell_fabric::error::RailError;
use doorbell_fabric::name::RailName;
use doorbell_inet::{Attached, Details, Interface, is_other_name, is_up, rails, rejected};

use crate::check::{Checked, check, shared_by_several};
use crate::config::XdpConfig;
use crate::program_owner::of_program;
use crate::rail::{capabilities, in_words};

/// Finds xdp rails for [`discover`](doorbell_fabric::discover::discover): one candidate for each interface,
/// and any address that is named. All are used only when named: an open rail attaches a program to its
/// interface.
#[derive(Clone, Debug, Default)]
pub struct XdpDriver {
    /// The configuration with which rails will be opened.
    pub config: XdpConfig,
}

impl XdpDriver {
    fn judge(&self, name: RailName) -> Candidate {
        let query = self.config.interface_query();
        let found = match Interface::find(&name, &query) {
            Ok(found) => found,
            Err(error) => return rejected(name, error).only_when_named(REASON),
        };
        let usable = found.clone().require(&name, &query);
        let checked = usable.and_then(|usable| check(&name, &usable, &self.config));
        match checked {
            Err(error) => self.facts(rejected(name, error), &found, None),
            Ok(checked) => {
                // There is one at least.
                let longest = checked.plans.first().map_or(0, |plan| plan.shape.limit);
                let candidate = Candidate::usable(name, capabilities(longest));
                self.facts(candidate, &found, Some(checked))
            }
        }
        .only_when_named(REASON)
    }

    fn facts(&self, candidate: Candidate, found: &Interface, checked: Option<Checked>) -> Candidate {
        let state = if is_up(found.state.flags) { "up" } else { "down" };
        let mut facts = candidate
            .fact("interface", &found.name)
            .fact("address", format!("{}/{}", found.address, found.prefix))
            .fact("mtu", format!("{} bytes", found.state.mtu))
            .fact("link", state);
        let Ok(details) = Details::of(found.index) else {
            return facts;
        };
        if let Some(program) = details.program {
            let how = match program.how {
                Attached::Driver => "native",
                Attached::Generic => "generic",
                Attached::Device => "in the device",
                Attached::Several => "several",
            };
            facts = facts.fact("xdp program", format!("number {}, {how}", program.id));
        }
        if let (Some(checked), Some(can)) = (checked, &facts.capabilities) {
            let longest = format!("{} bytes", can.limits.message);
            facts = facts
                .fact("longest frame", longest)
                .fact("queues", checked.queues.len().to_string())
                .fact("mode", in_words(checked.plans.iter().map(|plan| plan.mode)));
            if let Some(best) = checked.plans.first() {
                facts = facts.fact("multi-buffer", best.pieces_in_words());
            }
        }
        facts
    }
}

const REASON: &str = "an open rail attaches a program to its interface";

impl Driver for XdpDriver {
    fn kind(&self) -> &'static str {
        "xdp"
    }

    fn probe(&self) -> Result<Vec<Candidate>, RailError> {
        Ok(rails("xdp")?.into_iter().map(|name| self.judge(name)).collect())
    }

    /// Rails named by an address, its label, or an alternative name.
    fn named(&self, name: &RailName) -> Option<Candidate> {
        is_other_name(name).then(|| self.judge(name.clone()))
    }

    /// Any program on the interface is in the way, also another program's than doorbell's.
    fn holder(&self, rail: &RailName) -> Option<String> {
        let interface = Interface::find(rail, &self.config.interface_query()).ok()?;
        let program = Details::of(interface.index).ok()?.program?;
        Some(of_program(program.id).unwrap_or_else(|| format!("the XDP program number {}", program.id)))
    }

    /// More interfaces alone help: what several queues of one lack is stated.
    fn more(&self, set: &RailName, _: usize) -> Option<String> {
        let all = rails("xdp").ok()?;
        let first = all.iter().find(|rail| set.contains(rail))?;
        let why = shared_by_several(first.object());
        Some(format!("more interfaces help, and more queues do not: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_fabric::discover::discover;

    #[test]
    fn the_loopback_is_refused_with_the_reason() {
        let name: RailName = "xdp:lo".parse().unwrap();
        let found = discover(&[&XdpDriver::default()], &[]);
        let error = found.named(&name).unwrap_err().to_string();
        assert!(error.contains("one queue") && error.contains("udp:lo"), "{error}");
    }
}
