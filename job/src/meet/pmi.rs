//! The meeting of ranks under a launcher that exchanges values: each rank puts its hello into the launcher's
//! key-value store, and reads those of the others. No socket of ours listens, on one host and on many alike.
//!
//! ```text
//!   rank k                                   the launcher                        the others
//!     put   hello {version, hello, key of rank 0}  ──►
//!     fence ─────────────────────────────────────────────────────────────────────  fence
//!     get   hello of 0, of 1, … ◄──
//! ```
//!
//! A large job reads rank 0's value only, and those of the others when they are needed (`crate::ranks`).
//!
//! A rank that cannot take part (no rail, a bad setting) puts a *refusal* instead of its hello: all ranks end
//! with its reason, instead of waiting for it. The job's key takes the same way, so any process that can read
//! the launcher's values has it, and one that can write them is trusted: docs/launchers.md describes which
//! processes these are under each launcher. Values are parsed as strictly as messages from a socket.

use std::time::{Duration, Instant};

use doorbell_oob::Launcher;

use super::tcp::{Word, exit_of, shown, within_network};
use super::wire::LONGEST_HELLO;
use super::{Key, Meeting, RankInfo};
use crate::error::Error;

/// The key of each rank's value in the launcher's store.
const KEY: &str = "hello";

/// The result of the meeting.
#[derive(Debug)]
pub enum Met {
    /// The hellos of all ranks.
    All(Meeting),
    /// This rank and rank 0; the values of the others can be read later.
    Zero {
        /// The job's key.
        key: Key,
        /// What this rank has published.
        own: Box<RankInfo>,
        /// What rank 0 has published, against which all others are checked.
        zero: Box<RankInfo>,
    },
}

/// Meets the other ranks through `launcher`, with what this rank has prepared, or with the reason why it
/// cannot take part: all of them, or rank 0 alone where there are more than `most`.
///
/// # Errors
/// This rank's own reason, if there is one; [`Error::Withdrawn`] of another rank; contradictory hellos;
/// [`Error::Launch`].
pub fn meet<R>(
    launcher: &mut dyn Launcher,
    prepared: Result<(R, RankInfo), Error>,
    limit: Duration,
    most: u32,
) -> Result<(R, Met), Error> {
    let until = Instant::now() + limit;
    let left = || until.saturating_duration_since(Instant::now());
    let rank = launcher.place().rank;
    let (word, prepared) = match prepared {
        Ok((rails, mut own)) => {
            own.host = within_network(own.host);
            let key = if rank == 0 { Some(Key::random()?) } else { None };
            let word = Word::Hello {
                version: own.version.clone(),
                key,
                hello: Box::new(own.clone()),
            };
            (word, Ok((rails, own, key)))
        }
        Err(error) => {
            let word = Word::Refusal {
                exit: error.exit().number(),
                reason: error.to_string(),
            };
            (word, Err(error))
        }
    };
    let published = publish(launcher, &word, left());
    // This rank's own error comes before one of publishing it.
    let (rails, own, key) = prepared?;
    published?;
    launcher.fence(left())?;
    let met = if own.size > most {
        meet_zero(launcher, own, key, left())?
    } else {
        Met::All(gather(launcher, own, key, &left)?)
    };
    Ok((rails, met))
}

/// Reads rank 0's value only. A rank whose hello contradicts it finds that out here, and ends with the error;
/// a rank that reads that hello later comes to the same error.
fn meet_zero(
    launcher: &mut dyn Launcher,
    own: RankInfo,
    key: Option<Key>,
    left: Duration,
) -> Result<Met, Error> {
    let (zero, key) = match key {
        Some(key) => (own.clone(), key),
        None => {
            let text = launcher.get(0, KEY, left)?;
            let (zero, key) = parse(launcher, 0, &own, &text)?;
            (
                zero,
                key.ok_or_else(|| meeting_error(launcher, "rank 0 gave no key".to_owned()))?,
            )
        }
    };
    own.check(&zero)
        .map_err(|reason| Error::Disagreement { reason })?;
    Ok(Met::Zero {
        key,
        own: Box::new(own),
        zero: Box::new(zero),
    })
}

/// Reads what `rank` has published, after a meeting with rank 0 only.
///
/// # Errors
/// Those of [`meet`].
pub fn read(
    launcher: &mut dyn Launcher,
    rank: u32,
    own: &RankInfo,
    limit: Duration,
) -> Result<RankInfo, Error> {
    let text = launcher.get(rank, KEY, limit)?;
    match parse(launcher, rank, own, &text)? {
        (hello, None) => Ok(hello),
        (_, Some(_)) => Err(meeting_error(
            launcher,
            format!("rank {rank} gave a key, which is rank 0's to give"),
        )),
    }
}

/// Puts this rank's value. A rank that cannot take part ends after this: the others read its value after
/// their fence, if the launcher lets them, and otherwise notice that the launcher ends the job.
fn publish(launcher: &mut dyn Launcher, word: &Word, left: Duration) -> Result<(), Error> {
    let text = serde_json::to_vec(word).map_err(|error| meeting_error(launcher, error.to_string()))?;
    if text.len() > LONGEST_HELLO {
        return Err(meeting_error(launcher, "our own hello is too long".to_owned()));
    }
    launcher.put(KEY, &text, left)?;
    if let Word::Refusal { .. } = word {
        launcher.fence(left)?;
    }
    Ok(())
}

fn gather(
    launcher: &mut dyn Launcher,
    own: RankInfo,
    key: Option<Key>,
    left: &dyn Fn() -> Duration,
) -> Result<Meeting, Error> {
    let (rank, size) = (own.rank, own.size);
    let mut key = key;
    let mut ranks: Vec<RankInfo> = Vec::with_capacity(size as usize);
    for other in 0..size {
        if other == rank {
            ranks.push(own.clone());
            continue;
        }
        let text = launcher.get(other, KEY, left())?;
        let (hello, theirs) = parse(launcher, other, &own, &text)?;
        match (other, theirs) {
            (0, Some(theirs)) => key = Some(theirs),
            (0, None) => return Err(meeting_error(launcher, "rank 0 gave no key".to_owned())),
            (_, None) => {}
            (other, Some(_)) => {
                return Err(meeting_error(
                    launcher,
                    format!("rank {other} gave a key, which is rank 0's to give"),
                ));
            }
        }
        ranks.push(hello);
    }
    // Every rank checks the same hellos in the same order, so all end with the same error.
    for hello in &ranks {
        hello
            .check(&ranks[0])
            .map_err(|reason| Error::Disagreement { reason })?;
    }
    let key = key.ok_or_else(|| meeting_error(launcher, "no rank gave a key".to_owned()))?;
    Ok(Meeting { key, ranks })
}

/// Parses another rank's value. In two steps, since only the version of another version's value is
/// understood.
fn parse(
    launcher: &dyn Launcher,
    rank: u32,
    own: &RankInfo,
    text: &[u8],
) -> Result<(RankInfo, Option<Key>), Error> {
    let bad = |error: serde_json::Error| {
        meeting_error(
            launcher,
            format!("the hello of rank {rank} does not parse: {error}"),
        )
    };
    if text.len() > LONGEST_HELLO {
        return Err(meeting_error(
            launcher,
            format!("the hello of rank {rank} is too long"),
        ));
    }
    let value: serde_json::Value = serde_json::from_slice(text).map_err(bad)?;
    let theirs = value
        .pointer("/hello/version")
        .and_then(serde_json::Value::as_str);
    if let Some(theirs) = theirs.filter(|theirs| *theirs != own.version) {
        let reason = format!(
            "rank {rank} runs doorbell {}, rank {} runs {}",
            shown(theirs),
            own.rank,
            own.version
        );
        return Err(Error::Disagreement { reason });
    }
    match serde_json::from_value(value).map_err(bad)? {
        Word::Hello { hello, .. } if hello.rank != rank => Err(meeting_error(
            launcher,
            format!("rank {rank} claims to be rank {}", hello.rank),
        )),
        Word::Hello { hello, key, .. } => Ok((*hello, key)),
        Word::Refusal { exit, reason } => Err(Error::Withdrawn {
            rank,
            exit: exit_of(exit),
            reason: shown(&reason),
        }),
        Word::Ready | Word::Table(_) | Word::Occupied { .. } => Err(meeting_error(
            launcher,
            format!("rank {rank} sent a message out of turn"),
        )),
    }
}

fn meeting_error(launcher: &dyn Launcher, reason: String) -> Error {
    Error::Meeting {
        root: format!("the launcher ({})", launcher.kind()),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Barrier};

    use super::*;
    use crate::meet::shelf::{Shelf, Values};

    const LIMIT: Duration = Duration::from_secs(60);

    fn hello(rank: u32, size: u32) -> RankInfo {
        RankInfo::of_this_process(rank, size, BTreeMap::new(), Vec::new()).unwrap()
    }

    /// Runs the meeting of `size` ranks; `edit` changes what a rank prepares, and `put` has values in place
    /// of those of ranks.
    fn job(
        size: u32,
        edit: impl Fn(u32, RankInfo) -> Result<RankInfo, Error> + Sync,
        put: &[(u32, &[u8])],
    ) -> Vec<Result<Meeting, Error>> {
        let values = Values::of(put.iter().map(|(rank, text)| (*rank, KEY, *text)));
        let barrier = Arc::new(Barrier::new(size as usize));
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..size)
                .map(|rank| {
                    let mut launcher = Shelf::new((rank, size), &values, &barrier);
                    let edit = &edit;
                    scope.spawn(move || {
                        let prepared = edit(rank, hello(rank, size)).map(|own| ((), own));
                        let met = meet(&mut launcher, prepared, LIMIT, u32::MAX)?;
                        let Met::All(meeting) = met.1 else {
                            panic!("so few meet at once");
                        };
                        Ok(meeting)
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_come_to_the_same_table_and_key() {
        let met: Vec<Meeting> = job(4, |_, hello| Ok(hello), &[])
            .into_iter()
            .map(Result::unwrap)
            .collect();
        for meeting in &met {
            assert_eq!(meeting, &met[0]);
            assert!((0..4).eq(meeting.ranks.iter().map(|hello| hello.rank)));
        }
    }

    #[test]
    fn one_that_cannot_take_part_is_the_end_for_all_in_its_own_words() {
        let edit = |rank, hello| match rank {
            2 => Err(Error::NoRail {
                peer: 0,
                reasons: "nothing\u{7} here".to_owned(),
            }),
            _ => Ok(hello),
        };
        for (rank, met) in job(3, edit, &[]).into_iter().enumerate() {
            let error = met.unwrap_err();
            let code = if rank == 2 { "rail.none" } else { "job.withdrawn" };
            assert_eq!(
                (error.code(), error.exit()),
                (code, doorbell_fabric::error::Exit::Rail)
            );
            if rank != 2 {
                let text = error.to_string();
                assert!(
                    text.starts_with("rank 2 cannot take part: no rail") && !text.contains('\u{7}'),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn ranks_that_do_not_fit_together_all_say_so() {
        let edit = |rank, mut hello: RankInfo| {
            if rank == 1 {
                hello.agreed.insert("btl.window".to_owned(), "64".to_owned());
            } else {
                hello.agreed.insert("btl.window".to_owned(), "32".to_owned());
            }
            Ok(hello)
        };
        for met in job(2, edit, &[]) {
            let text = met.unwrap_err().to_string();
            assert!(
                text.contains("btl.window is 64 at rank 1 and 32 at rank 0"),
                "{text}"
            );
        }
    }

    #[test]
    fn hostile_words_are_refused() {
        let other = serde_json::json!({"hello": {"version": "99.0\u{1b}", "key": null, "hello": {}}});
        let other = other.to_string();
        let good = serde_json::to_vec(&Word::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            key: None,
            hello: Box::new(hello(7, 2)),
        })
        .unwrap();
        let keyed = serde_json::to_vec(&Word::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            key: Some(Key::of_seed(1)),
            hello: Box::new(hello(1, 2)),
        })
        .unwrap();
        let long = vec![b' '; LONGEST_HELLO + 1];
        let ready = serde_json::to_vec(&Word::Ready).unwrap();
        for (text, word) in [
            (&b"\xff\x00"[..], "does not parse"),
            (b"", "does not parse"),
            (b"{\"hello\": 3}", "does not parse"),
            (&long, "too long"),
            (&ready, "out of turn"),
            (&good, "claims to be rank 7"),
            (&keyed, "rank 0's to give"),
            (other.as_bytes(), "rank 1 runs doorbell 99.0 , rank 0 runs"),
        ] {
            let met = job(2, |_, hello| Ok(hello), &[(1, text)]);
            let text = met[0].as_ref().unwrap_err().to_string();
            assert!(text.contains(word), "{word}: {text}");
        }
        let keyless = serde_json::to_vec(&Word::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            key: None,
            hello: Box::new(hello(0, 2)),
        })
        .unwrap();
        let met = job(2, |_, hello| Ok(hello), &[(0, &keyless)]);
        let text = met[1].as_ref().unwrap_err().to_string();
        assert!(text.contains("rank 0 gave no key"), "{text}");
    }
}
