//! A spawn request (`mcmd=spawn`), line by line: `name=value`, each name once, checked against bounds before
//! it is kept.
//!
//! ```text
//!   nprocs=2  execname=/bin/prog  totspawns=1  spawnssofar=1  arg1=a b  arg2=c  argcnt=2
//!   preput_num=1  preput_key_0=k  preput_val_0=v  info_num=1  info_key_0=host  info_val_0=node2
//! ```
//!
//! One program per request: several (`totspawns`) are refused in a form that clients understand.

use std::collections::BTreeMap;

use crate::launch::{MOST_RANKS, Program, shown};

/// Maximum bytes of a request.
const LONGEST: usize = 256 << 10;
/// Maximum number of arguments, of values, and of infos.
const MOST: u32 = 1024;

#[derive(Debug, Default)]
pub(super) struct Order {
    words: BTreeMap<String, String>,
    bytes: usize,
}

impl Order {
    pub(super) fn line(&mut self, line: &str) -> Result<(), String> {
        let (name, value) = line
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| format!("`{}` in its `spawn` is not a word", shown(line)))?;
        self.bytes += line.len();
        if self.bytes > LONGEST {
            return Err(format!("its `spawn` has more than {LONGEST} bytes"));
        }
        if self.words.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(format!("`{}` occurs twice in its `spawn`", shown(name)));
        }
        Ok(())
    }

    /// Returns the request; the inner error is an unsupported feature.
    pub(super) fn whole(mut self) -> Result<Result<Program, &'static str>, String> {
        if self.number("totspawns", 1, u32::MAX)? != 1 {
            return Ok(Err("one_program_only"));
        }
        let ranks = self.number("nprocs", 0, u32::MAX)?;
        if ranks == 0 || ranks > MOST_RANKS {
            return Ok(Err("from_1_to_65536_processes"));
        }
        let name = self.word("execname")?;
        if name.is_empty() {
            return Ok(Err("no_program"));
        }
        let args = (1..=self.count("argcnt")?).map(|at| self.word(&format!("arg{at}")));
        let args = args.collect::<Result<_, _>>()?;
        Ok(Ok(Program {
            name,
            args,
            ranks,
            values: self.pairs("preput_num", "preput_key", "preput_val")?,
            infos: self.pairs("info_num", "info_key", "info_val")?,
        }))
    }

    fn pairs(&mut self, count: &str, key: &str, value: &str) -> Result<Vec<(String, String)>, String> {
        (0..self.count(count)?)
            .map(|at| {
                Ok((
                    self.word(&format!("{key}_{at}"))?,
                    self.word(&format!("{value}_{at}"))?,
                ))
            })
            .collect()
    }

    /// Returns a count: 0 if it is absent.
    fn count(&mut self, name: &str) -> Result<u32, String> {
        match self.words.contains_key(name) {
            true => self.number(name, 0, MOST),
            false => Ok(0),
        }
    }

    fn number(&mut self, name: &str, least: u32, most: u32) -> Result<u32, String> {
        let text = self.word(name)?;
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("`{name}` of its `spawn` is `{}`", shown(&text)))
    }

    fn word(&mut self, name: &str) -> Result<String, String> {
        let word = self.words.remove(name);
        word.ok_or_else(|| format!("its `spawn` lacks `{name}`"))
    }
}
