//! PMI-2: frames of words, as spoken by Slurm's `pmi2` plug-in and MPICH's hydra.
//!
//! ```text
//!   cmd=init pmi_version=2 pmi_subversion=0      cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0
//!      (the greeting and its answer are lines of PMI-1; from here on, a length of six characters precedes)
//!      51cmd=fullinit;pmijobid=3.0;pmirank=0;threaded=FALSE;
//!                                              114   cmd=fullinit-response;rc=0;…;rank=0;size=2;…;
//!      14cmd=job-getid;                        38    cmd=job-getid-response;rc=0;jobid=3.0;
//!      28cmd=kvs-put;key=k0;value=v0;          26    cmd=kvs-put-response;rc=0;
//!      14cmd=kvs-fence;                        28    cmd=kvs-fence-response;rc=0;
//!      35cmd=kvs-get;jobid=J;srcid=-1;key=k;   46    cmd=kvs-get-response;rc=0;found=TRUE;value=v1;
//!      …cmd=spawn;ncmds=1;preputcount=1;ppkey0=k;ppval0=v;subcmd=prog;maxprocs=2;argc=0;infokeycount=0;
//!                                             …     cmd=spawn-response;rc=0;jobid=J;nerrs=0;
//!      13cmd=finalize;                         27    cmd=finalize-response;rc=0;
//! ```
//!
//! The length is padded with spaces on either side. A `;` in a value is doubled.

use std::ops::Range;

use super::Kind;
use super::session::{Dialect, Program, Request, Terms, Words, shown, version};

/// Number of characters of the length.
const HEAD: usize = 6;
/// Maximum bytes of a key, without terminator.
const KEY: usize = 63;
/// Maximum bytes of a value, without terminator.
const VALUE: usize = 1023;
/// The start of the greeting, the only line that is not a frame.
const GREETING: &[u8] = b"cmd=";

/// The PMI-2 dialect.
#[derive(Debug)]
pub struct Pmi2;

impl Dialect for Pmi2 {
    const KIND: Kind = Kind::Pmi2;
    const OPENING: &'static [Request] = &[Request::Greet, Request::Join, Request::Name];
    const LONGEST: usize = 16 << 10;

    fn terms(rank: u32, size: u32, job: &str) -> Terms {
        Terms {
            rank,
            size,
            job: job.to_owned(),
            key: KEY,
            value: VALUE,
        }
    }

    fn room(terms: &Terms, _: &str) -> usize {
        terms.value
    }

    fn write(terms: &Terms, request: &Request) -> Vec<u8> {
        let job = doubled(&terms.job);
        let body = match request {
            Request::Greet => return b"cmd=init pmi_version=2 pmi_subversion=0\n".to_vec(),
            Request::Join | Request::Limits => {
                let rank = terms.rank;
                format!("cmd=fullinit;pmijobid={job};pmirank={rank};threaded=FALSE;")
            }
            Request::Name => "cmd=job-getid;".to_owned(),
            Request::Put { key, value } => {
                format!("cmd=kvs-put;key={};value={};", doubled(key), doubled(value))
            }
            Request::Fence => "cmd=kvs-fence;".to_owned(),
            Request::Get { key } => format!("cmd=kvs-get;jobid={job};srcid=-1;key={};", doubled(key)),
            Request::Abort { text, .. } => {
                // Slurm does not undouble text that it only displays.
                format!("cmd=abort;isworld=TRUE;msg={};", text.replace(';', ","))
            }
            Request::Spawn(program) => spawn(program),
            Request::Finalize => "cmd=finalize;".to_owned(),
        };
        format!("{:>HEAD$}{body}", body.len()).into_bytes()
    }

    fn split(bytes: &[u8]) -> Result<Option<(Range<usize>, usize)>, String> {
        let known = GREETING.len().min(bytes.len());
        if bytes[..known] == GREETING[..known] {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            return Ok(end.map(|end| (0..end, end + 1)));
        }
        let Some(head) = bytes.get(..HEAD) else {
            return Ok(None);
        };
        let digits = head.trim_ascii();
        let number = std::str::from_utf8(digits).ok().filter(|text| {
            let plain = text.bytes().all(|digit| digit.is_ascii_digit());
            plain && !text.is_empty()
        });
        let length: Option<usize> = number.and_then(|text| text.parse().ok());
        let length = length.ok_or_else(|| {
            let head = shown(&String::from_utf8_lossy(head));
            format!("`{head}` is not the length of a frame")
        })?;
        if HEAD + length > Self::LONGEST {
            return Err(format!("it announces {length} bytes, more than a frame may have"));
        }
        Ok((bytes.len() >= HEAD + length).then_some((HEAD..HEAD + length, HEAD + length)))
    }

    fn parse(text: &str) -> Result<Words, String> {
        if text.contains("pmi_version=") {
            return super::Pmi1::parse(text);
        }
        Words::new(frame(text)?)
    }

    fn answers(request: &Request) -> &'static str {
        match request {
            Request::Greet => "response_to_init",
            Request::Join | Request::Limits => "fullinit-response",
            Request::Name => "job-getid-response",
            Request::Put { .. } => "kvs-put-response",
            Request::Fence => "kvs-fence-response",
            Request::Get { .. } => "kvs-get-response",
            Request::Spawn(_) => "spawn-response",
            Request::Abort { .. } => "",
            Request::Finalize => "finalize-response",
        }
    }

    fn learn(terms: &mut Terms, request: &Request, words: &Words) -> Result<(), String> {
        match request {
            Request::Greet => version(words, 2),
            Request::Name => {
                words.get("jobid").unwrap_or_default().clone_into(&mut terms.job);
                Ok(())
            }
            _ => {
                let (rank, size) = (words.number("rank")?, words.number("size")?);
                if (i64::from(terms.rank), i64::from(terms.size)) == (rank, size) {
                    return Ok(());
                }
                Err(format!(
                    "it reports rank {rank} of {size}, but its variables contain rank {} of {}",
                    terms.rank, terms.size
                ))
            }
        }
    }

    fn is_absent(words: &Words) -> bool {
        words.get("found").is_some_and(|found| found == "FALSE")
    }
}

/// Encodes the values for all processes, then the program.
fn spawn(program: &Program) -> String {
    use std::fmt::Write as _;
    let mut text = format!("cmd=spawn;ncmds=1;preputcount={};", program.values.len());
    // Writing into a String cannot fail.
    for (at, (key, value)) in program.values.iter().enumerate() {
        let _ = write!(text, "ppkey{at}={};ppval{at}={};", doubled(key), doubled(value));
    }
    let (name, ranks, argc) = (doubled(&program.name), program.ranks, program.args.len());
    let _ = write!(text, "subcmd={name};maxprocs={ranks};argc={argc};");
    for (at, arg) in program.args.iter().enumerate() {
        let _ = write!(text, "argv{at}={};", doubled(arg));
    }
    let _ = write!(text, "infokeycount={};", program.infos.len());
    for (at, (key, value)) in program.infos.iter().enumerate() {
        let _ = write!(
            text,
            "infokey{at}={};infoval{at}={};",
            doubled(key),
            doubled(value)
        );
    }
    text
}

/// Doubles each `;`, which otherwise ends a word.
fn doubled(text: &str) -> String {
    text.replace(';', ";;")
}

/// Parses the words of a frame: `name=value;name=value;`.
fn frame(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut words = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, behind) = rest
            .split_once('=')
            .ok_or_else(|| format!("`{}` in it is not a word", shown(rest)))?;
        if name.is_empty() || name.contains(';') {
            return Err(format!("`{}` in it is not a name", shown(name)));
        }
        let (value, behind) =
            value_of(behind).ok_or_else(|| format!("its word `{}` does not end", shown(name)))?;
        words.push((name.to_owned(), value));
        rest = behind;
    }
    Ok(words)
}

/// Splits off a value up to the `;` that ends it; returns the rest too.
fn value_of(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let (before, behind) = rest.split_once(';')?;
        value.push_str(before);
        match behind.strip_prefix(';') {
            Some(behind) => {
                value.push(';');
                rest = behind;
            }
            None => return Some((value, behind)),
        }
    }
}
