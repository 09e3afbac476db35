//! Spawning through a launcher: what all launchers have in common when a running job requests more processes.
//!
//! The launcher passes one thing to the new processes: an *invitation*, some bytes of the requester, which
//! are neither an argument nor a variable. A PMI takes it as values that are put before the processes start
//! (`preput`), under the key of an ordinary value of rank 0.
//!
//! Our own launcher interprets three more keys, which other launchers treat as ordinary values:
//!
//! | key | call | |
//! |---|---|---|
//! | `db-token` | preput | the requester's number for the processes |
//! | `db-spawn-TOKEN-0-0` | get | why they will not start, once that is known |
//! | `db-abandon-TOKEN` | put | the requester no longer waits for them |

use super::{Kind, LaunchError, pieces};

/// The key of the invitation, as [`pieces::key_of`] takes it.
pub(crate) const INVITATION: &str = "invitation";
/// The key of the token that accompanies it.
pub(crate) const TOKEN: &str = "db-token";
/// The prefix of a token that is no longer waited for.
pub(crate) const ABANDON: &str = "db-abandon-";
/// Maximum bytes of a token.
const LONGEST_TOKEN: usize = 32;
/// Maximum bytes of a program, argument or host, so that it fits into one line of a PMI.
const LONGEST_WORD: usize = 900;
/// Maximum number of arguments.
const MOST_ARGUMENTS: usize = 1024;
/// The remedy for a launcher that does not start processes of a running job.
pub(crate) const ELSEWHERE: &str = "start the job with `doorbell run` (also inside an allocation, with --hosts), `mpiexec.hydra` or `mpirun`";

/// The processes to be started.
#[derive(Clone, Copy, Debug)]
pub struct Newcomers<'a> {
    /// The program, as the launcher looks it up.
    pub program: &'a str,
    /// The arguments of the program.
    pub args: &'a [String],
    /// The number of processes, at least one.
    pub ranks: u32,
    /// The launcher's name of the host to start on; `None` lets the launcher choose.
    pub host: Option<&'a str>,
    /// The invitation for the processes.
    pub invitation: &'a [u8],
    /// The token of this spawn: letters and digits.
    pub token: &'a str,
}

impl Newcomers<'_> {
    /// Checks that a PMI can express the request.
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
                        "`{}` has other characters than printable ASCII, which a PMI cannot carry",
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

/// Whether a text is a valid token.
pub(crate) fn is_token(text: &str) -> bool {
    (1..=LONGEST_TOKEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns the key, as [`pieces::key_of`] takes it, of a spawn's failure.
pub(crate) fn fate_of(token: &str) -> String {
    format!("spawn-{token}")
}

/// Returns key and text by which a server reports that processes will not start: one piece, cut to `longest`.
pub(crate) fn refusal_of(token: &str, reason: &str, longest: usize) -> (String, String) {
    // Two digits per byte, after eight for the length.
    let most = longest.saturating_sub(8) / 2;
    let mut end = reason.len().min(most);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let key = pieces::key_of(&fate_of(token), 0, 0);
    (key, pieces::written(&reason.as_bytes()[..end]))
}
