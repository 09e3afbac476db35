//! What all launchers have in common where a running job asks for more processes.
//!
//! The new processes are told one thing by the launcher: an *invitation*, some bytes of whoever asked, which are no argument
//! and no variable. A PMI takes it as values that are put before the processes start (`preput`), under the key of an
//! ordinary value of rank 0.
//!
//! Three more keys mean something to our own launcher, and nothing to others, for whom they are values like any:
//!
//! | key | by whom | |
//! |---|---|---|
//! | `db-token` | preput | by which number the processes are known to who asked |
//! | `db-spawn-TOKEN-0-0` | get | why they will not come, once that is known |
//! | `db-abandon-TOKEN` | put | nobody waits for them any more |

use super::{Kind, LaunchError, pieces};

/// The key of the invitation, as [`pieces::key_of`] takes it.
pub(crate) const INVITATION: &str = "invitation";
/// The key under which the token goes with it.
pub(crate) const TOKEN: &str = "db-token";
/// Before the token, for what nobody waits for.
pub(crate) const ABANDON: &str = "db-abandon-";
/// Longest token.
const LONGEST_TOKEN: usize = 32;
/// Longest program, argument or host, in bytes: one line of a PMI holds it.
const LONGEST_WORD: usize = 900;
/// Most arguments.
const MOST_ARGUMENTS: usize = 1024;
/// What to do where a launcher starts nothing more.
pub(crate) const ELSEWHERE: &str = "start the job with `doorbell run` (also inside an allocation, with --hosts), `mpiexec.hydra` or `mpirun`";

/// Processes to be started.
#[derive(Clone, Copy, Debug)]
pub struct Newcomers<'a> {
    /// The program, as the launcher looks for it.
    pub program: &'a str,
    /// Its arguments.
    pub args: &'a [String],
    /// How many, at least one.
    pub ranks: u32,
    /// On which host, by the launcher's name for it; where the launcher thinks best when there is none.
    pub host: Option<&'a str>,
    /// What they are told.
    pub invitation: &'a [u8],
    /// By which they are known: letters and digits, of one spawn only.
    pub token: &'a str,
}

impl Newcomers<'_> {
    /// Refuses what no PMI can say.
    pub(crate) fn check(&self, kind: Kind) -> Result<(), LaunchError> {
        let words = [self.program, self.host.unwrap_or("-")];
        let words = words.into_iter().chain(self.args.iter().map(String::as_str));
        for word in words {
            if word.len() > LONGEST_WORD {
                return Err(LaunchError::TooLong {
                    kind,
                    what: "an argument",
                    length: word.len(),
                    limit: LONGEST_WORD,
                });
            }
            if !super::is_plain(word.as_bytes()) {
                return Err(LaunchError::NotSpawned {
                    kind,
                    reason: format!(
                        "`{}` holds something else than printable ASCII, and that is all that goes through a PMI",
                        word.escape_debug()
                    ),
                });
            }
        }
        if self.args.len() > MOST_ARGUMENTS {
            return Err(LaunchError::TooLong {
                kind,
                what: "a list of arguments",
                length: self.args.len(),
                limit: MOST_ARGUMENTS,
            });
        }
        Ok(())
    }
}

/// Whether this is a token.
pub(crate) fn is_token(text: &str) -> bool {
    (1..=LONGEST_TOKEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The key, as [`pieces::key_of`] takes it, of what has become of a spawn.
pub(crate) fn fate_of(token: &str) -> String {
    format!("spawn-{token}")
}

/// Key and text by which a server says why processes will not come: one piece, cut where it is longer than `longest`.
pub(crate) fn said_of(token: &str, reason: &str, longest: usize) -> (String, String) {
    // Two digits for a byte, behind eight of the length.
    let most = longest.saturating_sub(8) / 2;
    let mut end = reason.len().min(most);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let key = pieces::key_of(&fate_of(token), 0, 0);
    (key, pieces::written(&reason.as_bytes()[..end]))
}
