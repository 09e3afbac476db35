//! Variables that have our prefix and are no settings: ignored, with one warning for a whole tree of
//! processes.
//!
//! Others use the prefix as well: Kubernetes makes `DOORBELL_SERVICE_HOST`, `DOORBELL_PORT` and more for a
//! service named `doorbell`, and programs name variables after the library that they use. A typing error must
//! be noticed all the same. So the first process that reads the environment writes the warning, and the
//! processes that it starts inherit the names.

use std::ffi::{OsStr, OsString};

use doorbell_oob::launch::pmix::VARIABLE as INVITATION;
use doorbell_oob::launch::singleton::VARIABLE as SPAWNED;

use super::source::{OTHERS, PREFIX, TEST_PREFIX};
use super::{FACTS, nearest};
use crate::error::suggestion;

/// The variable with the names, separated by commas, that a parent process has warned of.
pub(super) const WARNED: &str = "DOORBELL_WARNED";
/// Most names that one warning lists.
const LISTED: usize = 4;

/// Returns the names among `variables` that have our prefix and are not known, without those that a parent
/// process has warned of.
fn unknown(variables: &[(OsString, OsString)]) -> Vec<String> {
    let warned = variables.iter().find(|(name, _)| name == WARNED);
    let warned = warned.map_or_else(String::new, |(_, names)| names.to_string_lossy().into_owned());
    let mut names: Vec<String> = variables
        .iter()
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .filter(|name| is_unknown(name) && !warned.split(',').any(|one| one == name))
        .collect();
    names.sort();
    names
}

/// Whether a variable of this name has our prefix and is not known.
fn is_unknown(name: &str) -> bool {
    let is_ours = || OTHERS.contains(&name) || FACTS.iter().any(|fact| fact.variable == name);
    name.starts_with(PREFIX) && !name.starts_with(TEST_PREFIX) && !is_ours()
}

/// Whether Kubernetes made the variable `name` for a service: `X_SERVICE_HOST` is there, and the name is
/// `X_SERVICE_…` or `X_PORT…`.
pub(super) fn is_service_link(name: &str, variables: &[(OsString, OsString)]) -> bool {
    let of = |there: &OsStr| {
        let service = there.to_str()?.strip_suffix("_SERVICE_HOST")?;
        let rest = name.strip_prefix(service)?;
        Some(rest.starts_with("_SERVICE_") || rest == "_PORT" || rest.starts_with("_PORT_"))
    };
    variables.iter().any(|(there, _)| of(there).unwrap_or(false))
}

/// Formats a warning of these names: one line for those that Kubernetes made, and one for each of the first
/// others.
fn warning(names: &[String], variables: &[(OsString, OsString)]) -> String {
    let (links, others): (Vec<&String>, Vec<&String>) =
        names.iter().partition(|name| is_service_link(name, variables));
    let mut text = String::new();
    for name in others.iter().take(LISTED) {
        let known = FACTS.iter().map(|fact| fact.variable).chain(OTHERS);
        text += &format!(
            "doorbell: the environment variable `{}` is ignored: there is no such setting{}\n",
            name.escape_debug(),
            suggestion(nearest(name, known))
        );
    }
    if let Some(left) = others.len().checked_sub(LISTED + 1) {
        text += &format!(
            "doorbell: {} more variables that begin with {PREFIX} are ignored; `doorbell info --config` \
             lists those that mean something\n",
            left + 1
        );
    }
    if let Some(first) = links.first() {
        let more = match links.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        text += &format!(
            "doorbell: the environment variable `{}`{more} of a Kubernetes service are ignored: they are no \
             settings; `enableServiceLinks: false` in the pod leaves them out\n",
            first.escape_debug()
        );
    }
    text
}

/// Returns the warning of this process's variables that have our prefix and are no settings. It is empty at
/// ranks other than 0, and in processes that a job has started.
pub(crate) fn warning_at(rank: impl FnOnce() -> u32) -> String {
    let variables: Vec<_> = std::env::vars_os().collect();
    let is_started_by_job = [INVITATION, SPAWNED]
        .iter()
        .any(|mark| variables.iter().any(|(name, _)| name == mark));
    if is_started_by_job || rank() != 0 {
        return String::new();
    }
    warning(&unknown(&variables), &variables)
}

/// Returns the variable to pass to processes that this one starts, so that they do not repeat its warning of
/// unknown variables; `None` when there are none.
///
/// ```
/// # use doorbell_job as doorbell;
/// let mut command = std::process::Command::new("true");
/// command.envs(doorbell::config::warned_variables());
/// ```
pub fn warned_variables() -> Option<(&'static str, String)> {
    let names: Vec<String> = std::env::vars_os()
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .filter(|name| is_unknown(name))
        .collect();
    (!names.is_empty()).then(|| (WARNED, names.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        let pairs = pairs.iter();
        pairs.map(|(name, value)| (name.into(), value.into())).collect()
    }

    fn said(pairs: &[(&str, &str)]) -> String {
        let variables = variables(pairs);
        warning(&unknown(&variables), &variables)
    }

    #[test]
    fn a_typing_error_is_named_with_the_nearest_setting() {
        assert_eq!(
            said(&[
                ("DOORBELL_DEADLNE", "1 s"),
                ("HOME", "/"),
                ("DOORBELL_TEST_ANYTHING", "1")
            ]),
            "doorbell: the environment variable `DOORBELL_DEADLNE` is ignored: there is no such setting; \
             the nearest is `DOORBELL_DEADLINE`\n"
        );
        let far = said(&[("DOORBELL_ZZZZZZZ", "1")]);
        assert!(
            far.contains("DOORBELL_ZZZZZZZ") && !far.contains("nearest"),
            "{far}"
        );
        let known: Vec<(&str, &str)> = FACTS
            .iter()
            .map(|fact| fact.variable)
            .chain(OTHERS)
            .map(|name| (name, ""))
            .collect();
        assert_eq!(said(&known), "");
    }

    #[test]
    fn links_of_a_service_are_named_in_one_line_and_without_a_guess() {
        let links = [
            ("DOORBELL_SERVICE_HOST", "10.96.0.7"),
            ("DOORBELL_SERVICE_PORT", "7"),
            ("DOORBELL_SERVICE_PORT_HTTP", "7"),
            ("DOORBELL_PORT", "tcp://10.96.0.7:7"),
            ("DOORBELL_PORT_7_TCP", "tcp://10.96.0.7:7"),
            ("DOORBELL_PORT_7_TCP_ADDR", "10.96.0.7"),
            ("DOORBELL_AGENT_SERVICE_HOST", "10.96.0.8"),
            ("DOORBELL_AGENT_PORT", "tcp://10.96.0.8:7"),
        ];
        let text = said(&links);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains("and 7 more") && text.contains("enableServiceLinks") && !text.contains("nearest"),
            "{text}"
        );
        // The same name without the service is a typing error.
        assert!(
            said(&links[3..4]).contains("no such setting"),
            "{}",
            said(&links[3..4])
        );
    }

    #[test]
    fn a_warning_is_short_and_says_how_much_it_leaves_out() {
        let names: Vec<String> = (0..9).map(|n| format!("DOORBELL_QQQQQQQ{n}")).collect();
        let pairs: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
        let text = said(&pairs);
        assert_eq!(text.lines().count(), LISTED + 1, "{text}");
        assert!(text.contains(": 5 more variables"), "{text}");
        assert_eq!(said(&pairs[..LISTED]).lines().count(), LISTED);
        assert!(said(&[("DOORBELL_A\u{1b}[2J", "")]).contains("\\u{1b}"));
    }

    #[test]
    fn what_a_process_above_has_warned_of_is_not_repeated() {
        let pairs = [("DOORBELL_EAGRE", "1"), (WARNED, "DOORBELL_EAGRE,DOORBELL_ELSE")];
        assert_eq!(said(&pairs), "");
        let more = said(&[pairs[0], pairs[1], ("DOORBELL_DEADLNE", "1 s")]);
        assert!(more.contains("DEADLNE") && !more.contains("EAGRE"), "{more}");
    }
}
