//! PMI-1: lines of words, as spoken by MPICH's hydra and Slurm's `pmi2` plug-in.
//!
//! ```text
//!   cmd=init pmi_version=1 pmi_subversion=1      cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0
//!   cmd=get_maxes                                cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024
//!   cmd=get_my_kvsname                           cmd=my_kvsname kvsname=kvs_24628_0
//!   cmd=put kvsname=K key=k value=v              cmd=put_result rc=0 msg=success
//!   cmd=barrier_in                               cmd=barrier_out
//!   cmd=get kvsname=K key=k                      cmd=get_result rc=0 msg=success value=v
//!   mcmd=spawn                                   cmd=spawn_result rc=0
//!   nprocs=2 … one word a line … endcmd
//!   cmd=finalize                                 cmd=finalize_ack
//!   cmd=abort exitcode=3                         (no answer)
//! ```
//!
//! Values contain neither spaces nor line ends. Lines are kept below 1,024 bytes, the shortest buffer of a
//! server.

use std::ops::Range;

use super::session::{Dialect, Program, Request, Terms, Words, shown, version};
use super::{Kind, pieces};

/// Maximum bytes of a line that is sent, with its end.
const LINE: usize = 1023;
/// Minimum key length that a launcher must offer, so that our keys fit.
const LEAST_KEY: i64 = 32;
/// Minimum value length that a launcher must offer.
const LEAST_VALUE: i64 = 32;
/// Maximum length that is accepted from a launcher.
const MOST: i64 = 1 << 20;
/// Maximum bytes of a job's name.
const NAME: usize = 512;

/// The PMI-1 dialect.
#[derive(Debug)]
pub struct Pmi1;

impl Dialect for Pmi1 {
    const KIND: Kind = Kind::Pmi1;
    const OPENING: &'static [Request] = &[Request::Greet, Request::Limits, Request::Name];
    const LONGEST: usize = 16 << 10;

    fn terms(rank: u32, size: u32, _: &str) -> Terms {
        Terms {
            rank,
            size,
            job: String::new(),
            key: 0,
            value: 0,
        }
    }

    fn room(terms: &Terms, key: &str) -> usize {
        let around = Self::write(
            terms,
            &Request::Put {
                key: key.to_owned(),
                value: String::new(),
            },
        );
        terms.value.min(LINE.saturating_sub(around.len()))
    }

    fn write(terms: &Terms, request: &Request) -> Vec<u8> {
        let job = &terms.job;
        let line = match request {
            Request::Greet => "cmd=init pmi_version=1 pmi_subversion=1\n".to_owned(),
            Request::Limits => "cmd=get_maxes\n".to_owned(),
            Request::Name | Request::Join => "cmd=get_my_kvsname\n".to_owned(),
            Request::Put { key, value } => format!("cmd=put kvsname={job} key={key} value={value}\n"),
            Request::Fence => "cmd=barrier_in\n".to_owned(),
            Request::Get { key } => format!("cmd=get kvsname={job} key={key}\n"),
            Request::Spawn(program) => spawn(program),
            Request::Abort { code, .. } => format!("cmd=abort exitcode={code}\n"),
            Request::Finalize => "cmd=finalize\n".to_owned(),
        };
        line.into_bytes()
    }

    fn split(bytes: &[u8]) -> Result<Option<(Range<usize>, usize)>, String> {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        Ok(end.map(|end| (0..end, end + 1)))
    }

    fn parse(text: &str) -> Result<Words, String> {
        let word = |word: &str| match word.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => Err(format!("`{}` in it is not a word", shown(word))),
        };
        let words = text.split(' ').filter(|text| !text.is_empty()).map(word);
        Words::new(words.collect::<Result<_, _>>()?)
    }

    fn answers(request: &Request) -> &'static str {
        match request {
            Request::Greet => "response_to_init",
            Request::Limits => "maxes",
            Request::Name | Request::Join => "my_kvsname",
            Request::Put { .. } => "put_result",
            Request::Fence => "barrier_out",
            Request::Get { .. } => "get_result",
            Request::Spawn(_) => "spawn_result",
            Request::Abort { .. } => "",
            Request::Finalize => "finalize_ack",
        }
    }

    fn learn(terms: &mut Terms, request: &Request, words: &Words) -> Result<(), String> {
        match request {
            Request::Greet => version(words, 1),
            Request::Limits => {
                // The lengths include the terminator of a C string.
                terms.key = length(words, "keylen_max", LEAST_KEY)? - 1;
                terms.value = length(words, "vallen_max", LEAST_VALUE)? - 1;
                Ok(())
            }
            _ => {
                let job = words.get("kvsname").unwrap_or_default();
                if job.is_empty() || job.len() > NAME {
                    return Err(format!("its `kvsname` is not from 1 to {NAME} characters long"));
                }
                job.clone_into(&mut terms.job);
                let longest = pieces::key_of("hello", u32::MAX, 0);
                if Self::room(terms, &longest) + 1 < LEAST_VALUE as usize {
                    return Err("the job's name leaves no room for values".to_owned());
                }
                Ok(())
            }
        }
    }

    fn is_absent(words: &Words) -> bool {
        words.rc().is_ok_and(|code| code != 0)
    }
}

/// Encodes the only request of several lines: one word per line, so that arguments may contain spaces.
fn spawn(program: &Program) -> String {
    use std::fmt::Write as _;
    let mut lines = format!(
        "mcmd=spawn\nnprocs={}\nexecname={}\ntotspawns=1\nspawnssofar=1\n",
        program.ranks, program.name
    );
    // Writing into a String cannot fail.
    for (at, arg) in (1..).zip(&program.args) {
        let _ = writeln!(lines, "arg{at}={arg}");
    }
    let _ = writeln!(lines, "argcnt={}", program.args.len());
    let _ = writeln!(lines, "preput_num={}", program.values.len());
    for (at, (key, value)) in program.values.iter().enumerate() {
        let _ = writeln!(lines, "preput_key_{at}={key}\npreput_val_{at}={value}");
    }
    let _ = writeln!(lines, "info_num={}", program.infos.len());
    for (at, (key, value)) in program.infos.iter().enumerate() {
        let _ = writeln!(lines, "info_key_{at}={key}\ninfo_val_{at}={value}");
    }
    lines + "endcmd\n"
}

fn length(words: &Words, name: &str, least: i64) -> Result<usize, String> {
    match words.number(name)? {
        length if (least..=MOST).contains(&length) => Ok(length as usize),
        length => Err(format!("its `{name}` is {length}, outside {least} to {MOST}")),
    }
}
