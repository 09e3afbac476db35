//! Rules of `nft` and what they do to frames for a rail, as far as they can be understood.
//!
//! ```text
//!   a rule    matches surely, surely not, or perhaps     (interface, protocol, port, length; else: perhaps)
//!   a chain   first sure verdict ends it; a drop after a "perhaps" is a "may drop"
//! ```

use std::collections::HashMap;

use serde_json::Value;

use super::{Fate, Frames, Way};

/// The length of a short frame, in bytes.
const SHORT: usize = 64;
/// Bytes in front of a frame: UDP's header, IP's of both versions, Ethernet's.
const UDP: u64 = 8;
const IPV4: u64 = 20;
const IPV6: u64 = 40;
const ETHERNET: u64 = 14;

/// Returns what this rule set does to frames that come in, then to those that go out, of the least and of the
/// full length.
pub(super) fn of(rules: &Value, frames: &Frames<'_>) -> Fate {
    let each =
        |way| [SHORT.min(frames.longest), frames.longest].map(|length| one_way(rules, frames, way, length));
    let all = [each(Way::In), each(Way::Out)];
    let seen: usize = all.iter().map(|[(seen, _), _]| seen).sum();
    let verdicts = all.into_iter().flatten().filter_map(|(_, fate)| fate);
    // The first that is sure, else the first that may.
    let worst = verdicts.min_by_key(|fate| !matches!(fate, Fate::Drops { .. }));
    worst.unwrap_or_else(|| {
        Fate::Passes(match seen {
            0 => "no rule looks at what comes in or goes out".to_owned(),
            1 => "1 chain looks at what comes in or goes out, and lets it pass".to_owned(),
            seen => format!("{seen} chains look at what comes in or goes out, and let it pass"),
        })
    })
}

/// Returns how many chains look at frames that go this way, and what drops them, or may.
fn one_way(rules: &Value, frames: &Frames<'_>, way: Way, length: usize) -> (usize, Option<Fate>) {
    let objects: Vec<&Value> = rules["nftables"].as_array().into_iter().flatten().collect();
    let mut set = Set {
        frames,
        way,
        length: length as u64,
        rules: HashMap::new(),
    };
    for rule in objects.iter().filter_map(|object| object.get("rule")) {
        set.rules.entry(name(rule, "chain")).or_default().push(rule);
    }
    let (mut seen, mut may) = (0, None);
    for chain in objects.iter().filter_map(|object| object.get("chain")) {
        if !set.concerns(chain) {
            continue;
        }
        seen += 1;
        match set.walk(chain) {
            End::Drop(rule) => {
                let fix = set.accept(chain);
                return (seen, Some(Fate::Drops { rule, way, fix }));
            }
            End::Perhaps(rule) => {
                let fix = || set.accept(chain);
                may = may.or_else(|| {
                    Some(Fate::MayDrop {
                        rule,
                        way,
                        fix: fix(),
                    })
                });
            }
            End::Pass => {}
        }
    }
    (seen, may)
}

/// Family, table and chain: a chain's full name. `last` is the field that holds its own.
pub(super) fn name(object: &Value, last: &str) -> [String; 3] {
    [&object["family"], &object["table"], &object[last]].map(|value| value.as_str().unwrap_or("").to_owned())
}

/// Whether an expression matches our frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fits {
    No,
    Perhaps,
    Yes,
}

/// How a chain ends for our frames.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Pass,
    Drop(String),
    Perhaps(String),
}

/// How frames leave the rules of a chain.
enum Left {
    Ended(End),
    /// Behind its last rule: all of them, or some, and others may have been let in before.
    AtItsEnd {
        all: bool,
    },
}

struct Set<'a> {
    frames: &'a Frames<'a>,
    way: Way,
    /// Bytes of the frame that is judged.
    length: u64,
    rules: HashMap<[String; 3], Vec<&'a Value>>,
}

/// The statement that ends a rule.
enum Verdict<'a> {
    None,
    Accept,
    Drop,
    Return,
    Jump(&'a str),
    Unknown,
}

/// Chains called by chains, at most: the kernel's own bound.
const DEEPEST: usize = 16;

impl Set<'_> {
    /// Whether our frames that go this way pass this base chain.
    fn concerns(&self, chain: &Value) -> bool {
        let families: &[&str] = if self.frames.is_ipv4 {
            &["ip", "inet"]
        } else {
            &["ip6", "inet"]
        };
        let is_filter = chain["type"] == "filter" || chain["type"] == "route";
        let (ip_hooks, device_hook) = match self.way {
            Way::In => (["prerouting", "input"], "ingress"),
            Way::Out => (["output", "postrouting"], "egress"),
        };
        match chain["hook"].as_str() {
            Some(hook) if ip_hooks.contains(&hook) => {
                is_filter && families.contains(&chain["family"].as_str().unwrap_or(""))
            }
            Some(hook) if hook == device_hook => match &chain["dev"] {
                Value::String(device) => device == self.frames.interface,
                Value::Array(devices) => devices.iter().any(|device| device == self.frames.interface),
                _ => false,
            },
            _ => false,
        }
    }

    fn walk(&self, chain: &Value) -> End {
        let own = name(chain, "name");
        let policy =
            (chain["policy"] == "drop").then(|| format!("chain {} has the policy drop", own.join(" ")));
        match (self.through(&own, 0), policy) {
            (Left::Ended(end), _) => end,
            (Left::AtItsEnd { .. }, None) => End::Pass,
            (Left::AtItsEnd { all: true }, Some(policy)) => End::Drop(policy),
            (Left::AtItsEnd { all: false }, Some(policy)) => End::Perhaps(policy),
        }
    }

    /// Walks a chain's rules.
    fn through(&self, chain: &[String; 3], depth: usize) -> Left {
        let (mut all, mut perhaps) = (true, None);
        for rule in self.rules.get(chain).into_iter().flatten() {
            let text = || format!("rule {} of chain {}", rule["handle"], chain.join(" "));
            let (fits, verdict) = self.rule(rule);
            if fits == Fits::No {
                continue;
            }
            let end = match verdict {
                Verdict::None => continue,
                Verdict::Return if fits == Fits::Yes => break,
                // Those that it takes are at the chain's end, with those that go on.
                Verdict::Return => continue,
                Verdict::Accept => End::Pass,
                Verdict::Drop => End::Drop(text()),
                Verdict::Unknown => End::Perhaps(text()),
                Verdict::Jump(_) if depth >= DEEPEST => End::Perhaps(text()),
                Verdict::Jump(to) => {
                    match self.through(&[chain[0].clone(), chain[1].clone(), to.to_owned()], depth + 1) {
                        Left::Ended(end) => end,
                        Left::AtItsEnd { all: came } => {
                            all &= came;
                            continue;
                        }
                    }
                }
            };
            match end {
                End::Pass if fits == Fits::Yes => {
                    return Left::Ended(perhaps.map_or(End::Pass, End::Perhaps));
                }
                End::Drop(rule) if fits == Fits::Yes && all && perhaps.is_none() => {
                    return Left::Ended(End::Drop(rule));
                }
                End::Pass => all = false,
                End::Drop(rule) | End::Perhaps(rule) => {
                    let rule = perhaps.take().unwrap_or(rule);
                    if fits == Fits::Yes {
                        return Left::Ended(End::Perhaps(rule));
                    }
                    perhaps = Some(rule);
                }
            }
        }
        match perhaps {
            Some(rule) => Left::Ended(End::Perhaps(rule)),
            None => Left::AtItsEnd { all },
        }
    }

    /// Returns how a rule fits our frames, and what it does.
    fn rule<'v>(&self, rule: &'v Value) -> (Fits, Verdict<'v>) {
        let mut fits = Fits::Yes;
        let mut verdict = Verdict::None;
        for part in rule["expr"].as_array().into_iter().flatten() {
            let Some((what, value)) = part.as_object().and_then(|object| object.iter().next()) else {
                fits = fits.min(Fits::Perhaps);
                continue;
            };
            match what.as_str() {
                "match" => fits = fits.min(self.fits(value)),
                "accept" => verdict = Verdict::Accept,
                "drop" | "reject" => verdict = Verdict::Drop,
                "return" => verdict = Verdict::Return,
                "jump" => verdict = Verdict::Jump(value["target"].as_str().unwrap_or("")),
                "counter" | "log" | "comment" | "mangle" | "notrack" | "meta" => {}
                "limit" => fits = fits.min(Fits::Perhaps),
                "goto" | "vmap" | "xt" | "queue" => {
                    fits = fits.min(Fits::Perhaps);
                    verdict = Verdict::Unknown;
                }
                _ => fits = fits.min(Fits::Perhaps),
            }
        }
        (fits, verdict)
    }

    /// Returns whether a comparison matches our frames.
    fn fits(&self, value: &Value) -> Fits {
        let (left, right) = (&value["left"], &value["right"]);
        // A comparison with another protocol's header matches none of our frames, whatever its value.
        if left["payload"]["protocol"]
            .as_str()
            .is_some_and(|protocol| self.is_foreign(protocol))
        {
            return Fits::No;
        }
        if let Some([least, most]) = self.length_of(left) {
            let op = value["op"].as_str().unwrap_or("==");
            return [least, most]
                .map(|length| compare(length, op, right))
                .into_iter()
                .reduce(both)
                .unwrap_or(Fits::Perhaps);
        }
        let fits = if let Some(key) = left["meta"]["key"].as_str() {
            match key {
                "iifname" | "iif" => self.is_interface(right, Way::In),
                "oifname" | "oif" => self.is_interface(right, Way::Out),
                "l4proto" => self.is(right, |name| name == "udp"),
                "nfproto" => self.is(right, |name| {
                    name == if self.frames.is_ipv4 { "ipv4" } else { "ipv6" }
                }),
                "protocol" => self.is(right, |name| {
                    name == if self.frames.is_ipv4 { "ip" } else { "ip6" }
                }),
                _ => Fits::Perhaps,
            }
        } else if let Some(payload) = left["payload"].as_object() {
            let word = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or("");
            match (word("protocol"), word("field")) {
                ("udp" | "th", field @ ("dport" | "sport")) => self.port_of(field, right),
                ("udp" | "th", _) => Fits::Perhaps,
                ("ip", "protocol") | ("ip6", "nexthdr") => self.is(right, |name| name == "udp"),
                _ => Fits::Perhaps,
            }
        } else if left["ct"]["key"] == "state" {
            self.is_state(right)
        } else {
            Fits::Perhaps
        };
        match value["op"].as_str() {
            Some("==" | "in") | None => fits,
            Some("!=") => match fits {
                Fits::No => Fits::Yes,
                Fits::Yes => Fits::No,
                Fits::Perhaps => Fits::Perhaps,
            },
            Some(_) => Fits::Perhaps,
        }
    }

    /// Whether none of our frames has such a header.
    fn is_foreign(&self, protocol: &str) -> bool {
        match protocol {
            "tcp" | "icmp" | "icmpv6" | "sctp" | "dccp" | "arp" | "igmp" => true,
            "ip" => !self.frames.is_ipv4,
            "ip6" => self.frames.is_ipv4,
            _ => false,
        }
    }

    /// Our own ports are known. Those of peers are of the same range as a rule: what takes all of it takes
    /// theirs.
    fn port_of(&self, field: &str, right: &Value) -> Fits {
        let is_ours = (field == "dport") == (self.way == Way::In);
        match self.port(right) {
            Fits::No if !is_ours => Fits::Perhaps,
            fits => fits,
        }
    }

    /// The length of the frame where `left` means one: the least and the most that it may be there. What
    /// `meta length` counts includes the hardware's header at a device, as the driver has it.
    fn length_of(&self, left: &Value) -> Option<[u64; 2]> {
        let udp = self.length + UDP;
        let packet = udp + if self.frames.is_ipv4 { IPV4 } else { IPV6 };
        match (
            left["payload"]["protocol"].as_str(),
            left["payload"]["field"].as_str(),
        ) {
            (Some("udp"), Some("length")) => Some([udp; 2]),
            (Some("ip"), Some("length")) if self.frames.is_ipv4 => Some([packet; 2]),
            (Some("ip6"), Some("length")) if !self.frames.is_ipv4 => Some([udp; 2]),
            _ if left["meta"]["key"] == "length" => Some([packet, packet + ETHERNET]),
            _ => None,
        }
    }

    /// A frame from a peer is new at first; an answer to one of ours is not.
    fn is_state(&self, right: &Value) -> Fits {
        match words(right) {
            Some(states)
                if states
                    .iter()
                    .any(|state| *state == "new" || *state == "established") =>
            {
                Fits::Perhaps
            }
            Some(_) => Fits::No,
            None => Fits::Perhaps,
        }
    }

    /// Frames that come in have no interface to go out by where rules look at them, and the other way round.
    fn is_interface(&self, right: &Value, way: Way) -> Fits {
        self.is(right, |name| {
            self.way == way && matches_name(name, self.frames.interface)
        })
    }

    fn is(&self, right: &Value, ours: impl Fn(&str) -> bool) -> Fits {
        match words(right) {
            Some(words) if words.iter().any(|word| ours(word)) => Fits::Yes,
            Some(_) => Fits::No,
            None => Fits::Perhaps,
        }
    }

    /// Whether the rail's ports are among these: all of them, some, or none.
    fn port(&self, right: &Value) -> Fits {
        let one = |value: &Value| -> Option<(u64, u64)> {
            match (value.as_u64(), value["range"].as_array()) {
                (Some(port), _) => Some((port, port)),
                (None, Some(range)) => Some((range.first()?.as_u64()?, range.get(1)?.as_u64()?)),
                _ => None,
            }
        };
        let all: Option<Vec<_>> = match right["set"].as_array() {
            Some(set) => set.iter().map(one).collect(),
            None => one(right).map(|range| vec![range]),
        };
        let Some(all) = all else { return Fits::Perhaps };
        let (first, last) = (u64::from(self.frames.ports.0), u64::from(self.frames.ports.1));
        if all.iter().any(|(from, to)| *from <= first && last <= *to) {
            Fits::Yes
        } else if all.iter().any(|(from, to)| *from <= last && first <= *to) {
            Fits::Perhaps
        } else {
            Fits::No
        }
    }

    /// The command that lets our frames pass, in front of everything else in this base chain.
    fn accept(&self, chain: &Value) -> String {
        let [family, table, chain] = name(chain, "name");
        let (first, last) = self.frames.ports;
        let (interface, port) = match self.way {
            Way::In => ("iifname", "dport"),
            Way::Out => ("oifname", "sport"),
        };
        let by = if family == "netdev" {
            String::new()
        } else {
            format!("{interface} \"{}\" ", self.frames.interface)
        };
        let nft = super::program();
        format!("{nft} 'insert rule {family} {table} {chain} {by}udp {port} {first}-{last} accept'")
    }
}

/// Returns how a number fits a comparison.
fn compare(number: u64, op: &str, right: &Value) -> Fits {
    let yes = |is| if is { Fits::Yes } else { Fits::No };
    let bounds = right["range"]
        .as_array()
        .and_then(|range| Some((range.first()?.as_u64()?, range.get(1)?.as_u64()?)));
    match (op, right.as_u64(), bounds) {
        (">", Some(than), _) => yes(number > than),
        (">=", Some(than), _) => yes(number >= than),
        ("<", Some(than), _) => yes(number < than),
        ("<=", Some(than), _) => yes(number <= than),
        ("==", Some(than), _) => yes(number == than),
        ("!=", Some(than), _) => yes(number != than),
        ("==", None, Some((from, to))) => yes((from..=to).contains(&number)),
        ("!=", None, Some((from, to))) => yes(!(from..=to).contains(&number)),
        _ => Fits::Perhaps,
    }
}

/// Returns how both fit, where either may be the one.
fn both(one: Fits, other: Fits) -> Fits {
    if one == other { one } else { Fits::Perhaps }
}

/// An interface's name, or one with a star at its end.
fn matches_name(pattern: &str, name: &str) -> bool {
    pattern
        .strip_suffix('*')
        .map_or(pattern == name, |begin| name.starts_with(begin))
}

/// The words of a value: one, or a set of them; `None` where there is something else among them.
fn words(value: &Value) -> Option<Vec<&str>> {
    match (value.as_str(), value.as_array().or(value["set"].as_array())) {
        (Some(word), _) => Some(vec![word]),
        (None, Some(all)) => all.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const OURS: Frames<'_> = Frames {
        interface: "v0",
        is_ipv4: true,
        ports: (32_768, 60_999),
        longest: 1472,
    };

    fn chain(family: &str, hook: &str, policy: &str) -> Value {
        json!({"chain": {"family": family, "table": "t", "name": "in", "type": "filter", "hook": hook, "policy": policy,
               "dev": "v0"}})
    }

    fn rule(family: &str, chain: &str, expr: Value) -> Value {
        json!({"rule": {"family": family, "table": "t", "chain": chain, "handle": 7, "expr": expr}})
    }

    fn fate(objects: Vec<Value>) -> Fate {
        of(&json!({ "nftables": objects }), &OURS)
    }

    fn matches(left: Value, right: Value) -> Value {
        json!({"match": {"op": "==", "left": left, "right": right}})
    }

    fn to_port(right: Value) -> Value {
        matches(json!({"payload": {"protocol": "udp", "field": "dport"}}), right)
    }

    #[test]
    fn no_rules_drop_nothing() {
        assert!(matches!(fate(vec![]), Fate::Passes(_)));
        assert!(matches!(
            fate(vec![chain("inet", "input", "accept")]),
            Fate::Passes(_)
        ));
        // Rules for other interfaces, families and hooks do not concern us.
        let elsewhere = json!({"chain": {"family": "netdev", "table": "t", "name": "in", "type": "filter", "hook": "ingress",
                               "dev": "v1", "policy": "drop"}});
        assert!(matches!(
            fate(vec![
                elsewhere,
                chain("ip6", "input", "drop"),
                chain("ip", "forward", "drop")
            ]),
            Fate::Passes(_)
        ));
    }

    #[test]
    fn a_rule_that_drops_udp_is_found_with_what_lets_it_in() {
        let udp = matches(
            json!({"payload": {"protocol": "ip", "field": "protocol"}}),
            json!("udp"),
        );
        let expr = json!([udp, {"counter": {"packets": 0, "bytes": 0}}, {"drop": null}]);
        let found = fate(vec![
            chain("netdev", "ingress", "accept"),
            rule("netdev", "in", expr),
        ]);
        let Fate::Drops {
            rule,
            way: Way::In,
            fix,
        } = found
        else {
            panic!("{found:?}")
        };
        assert_eq!(rule, "rule 7 of chain netdev t in");
        assert!(
            fix.ends_with("nft 'insert rule netdev t in udp dport 32768-60999 accept'"),
            "{fix}"
        );
    }

    #[test]
    fn a_policy_drops_what_no_rule_lets_in() {
        let base = || chain("inet", "input", "drop");
        let Fate::Drops { rule: text, fix, .. } = fate(vec![base()]) else {
            panic!("it drops")
        };
        assert!(
            text.contains("policy drop") && fix.contains("iifname \"v0\""),
            "{text} {fix}"
        );
        let all = json!([to_port(json!({"range": [1024, 65535]})), {"accept": null}]);
        assert!(matches!(
            fate(vec![base(), rule("inet", "in", all)]),
            Fate::Passes(_)
        ));
        let others = json!([to_port(json!({"set": [22, 53]})), {"accept": null}]);
        assert!(matches!(
            fate(vec![base(), rule("inet", "in", others)]),
            Fate::Drops { .. }
        ));
    }

    #[test]
    fn rules_for_what_goes_out_are_read_as_well() {
        let udp = || matches(json!({"meta": {"key": "l4proto"}}), json!("udp"));
        for (family, hook) in [("inet", "output"), ("ip", "postrouting"), ("netdev", "egress")] {
            let found = fate(vec![
                chain(family, hook, "accept"),
                rule(family, "in", json!([udp(), {"drop": null}])),
            ]);
            let Fate::Drops {
                way: Way::Out, fix, ..
            } = found
            else {
                panic!("{hook}: {found:?}")
            };
            assert!(fix.contains("udp sport 32768-60999 accept"), "{fix}");
            assert_eq!(fix.contains("oifname \"v0\""), family != "netdev", "{fix}");
        }
        // A policy, and rules by the interface: that of what comes in matches nothing here.
        let Fate::Drops { rule: text, .. } = fate(vec![chain("inet", "output", "drop")]) else {
            panic!("it drops")
        };
        assert!(text.contains("policy drop"), "{text}");
        for (key, name, drops) in [
            ("oifname", "v0", true),
            ("oifname", "v1", false),
            ("iifname", "v0", false),
        ] {
            let by = matches(json!({"meta": {"key": key}}), json!(name));
            let found = fate(vec![
                chain("inet", "output", "accept"),
                rule("inet", "in", json!([by, {"drop": null}])),
            ]);
            assert_eq!(
                matches!(found, Fate::Drops { .. }),
                drops,
                "{key} {name}: {found:?}"
            );
        }
    }

    #[test]
    fn a_rule_for_long_packets_drops_the_long_ones() {
        let payload = |protocol: &str| json!({"payload": {"protocol": protocol, "field": "length"}});
        let meta = json!({"meta": {"key": "length"}});
        let drops = |left: &Value, op: &str, right: Value| {
            let long = json!({"match": {"op": op, "left": left, "right": right}});
            let found = fate(vec![
                chain("inet", "input", "accept"),
                rule("inet", "in", json!([long, {"drop": null}])),
            ]);
            match found {
                Fate::Drops { .. } => Some(true),
                Fate::Passes(_) => Some(false),
                _ => None,
            }
        };
        for (left, op, right, expected) in [
            (payload("udp"), ">", json!(1000), Some(true)),
            (payload("udp"), ">", json!(1480), Some(false)),
            (payload("udp"), ">=", json!(1480), Some(true)),
            (payload("ip"), ">", json!(1499), Some(true)),
            (payload("ip"), "==", json!({"range": [1400, 1600]}), Some(true)),
            (payload("udp"), "<", json!(100), Some(true)),
            (meta.clone(), ">", json!(1000), Some(true)),
            (meta.clone(), ">", json!(1507), None),
            (meta, ">", json!(2000), Some(false)),
            (payload("ip6"), ">", json!(1000), Some(false)),
            (payload("udp"), ">", json!({"set": [1]}), None),
        ] {
            assert_eq!(drops(&left, op, right.clone()), expected, "{left} {op} {right}");
        }
    }

    #[test]
    fn what_is_not_understood_may_drop_and_is_said() {
        let base = chain("inet", "input", "accept");
        let from = matches(
            json!({"payload": {"protocol": "ip", "field": "saddr"}}),
            json!("10.0.0.1"),
        );
        let found = fate(vec![
            base.clone(),
            rule("inet", "in", json!([from, {"drop": null}])),
        ]);
        assert!(matches!(found, Fate::MayDrop { .. }), "{found:?}");
        let found = fate(vec![
            base.clone(),
            rule("inet", "in", json!([{"xt": {"type": "match"}}])),
        ]);
        assert!(matches!(found, Fate::MayDrop { .. }), "{found:?}");
        let tcp = matches(
            json!({"payload": {"protocol": "tcp", "field": "dport"}}),
            json!(22),
        );
        let not_ssh = json!({"match": {"op": "!=", "left": tcp["match"]["left"], "right": 22}});
        for of_tcp in [tcp, not_ssh] {
            assert!(matches!(
                fate(vec![
                    base.clone(),
                    rule("inet", "in", json!([of_tcp, {"drop": null}]))
                ]),
                Fate::Passes(_)
            ));
        }
    }

    #[test]
    fn rules_are_walked_in_order_and_through_the_chains_they_call() {
        let base = chain("inet", "input", "accept");
        let jump = rule("inet", "in", json!([{"jump": {"target": "more"}}]));
        let drops = rule("inet", "more", json!([{"drop": null}]));
        assert!(matches!(
            fate(vec![base.clone(), jump.clone(), drops.clone()]),
            Fate::Drops { .. }
        ));
        let first = rule(
            "inet",
            "in",
            json!([to_port(json!({"range": [0, 65535]})), {"accept": null}]),
        );
        assert!(matches!(
            fate(vec![base.clone(), first, jump.clone(), drops.clone()]),
            Fate::Passes(_)
        ));
        let returns = rule("inet", "more", json!([{"return": null}]));
        assert!(matches!(
            fate(vec![base.clone(), jump, returns, drops]),
            Fate::Passes(_)
        ));
        // A chain that calls itself ends, too.
        let again = rule("inet", "in", json!([{"jump": {"target": "in"}}]));
        assert!(matches!(fate(vec![base, again]), Fate::MayDrop { .. }));
    }
}
