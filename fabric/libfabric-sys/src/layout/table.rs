//! Layouts as text: what a folder of headers measures, or what is declared here.
//!
//! ```text
//! release 1.17
//! struct fi_context 32
//!   internal 0 32
//! table fi_ops_mr 4
//!   size 0 8
//!   reg 8 8
//! const FI_MSG 2
//! ```
//!
//! A structure has its size in bytes, a table its number of entries, a field its offset and its size. Lines
//! that begin with `#` are comments.

use std::fmt;
use std::str::FromStr;

use super::{Kind, Structure, constants, structures, tables};
use crate::level::Level;

/// The layouts of one release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The release of the headers.
    pub release: Level,
    /// The structures and the tables of functions.
    pub structures: Vec<Measured>,
    /// The constants, by name.
    pub constants: Vec<(String, u64)>,
}

/// A structure or table of functions as it was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The name in C.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The size in bytes.
    pub size: usize,
    /// The fields, by offset.
    pub fields: Vec<MeasuredField>,
}

/// A field as it was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredField {
    /// The name in C.
    pub name: String,
    /// The offset in bytes.
    pub offset: usize,
    /// The size in bytes.
    pub size: usize,
}

/// A line that is no line of a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The line has another form.
    #[error("line {line} of the layouts is {text:?}; expected {expected}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The line itself.
        text: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// No line names the release.
    #[error("the layouts name no release; their first line is to be `release 1.17` or the like")]
    NoRelease,
}

/// The size of a table's entry.
const ENTRY: usize = size_of::<usize>();

impl Table {
    /// Returns what is declared here, as an API level has it.
    pub fn declared(level: Level) -> Self {
        let all = structures().chain(tables());
        Self {
            release: level,
            structures: all
                .filter_map(|structure| Measured::declared(structure, level))
                .collect(),
            constants: constants()
                .map(|constant| (constant.name.to_owned(), constant.value))
                .collect(),
        }
    }

    /// Returns a structure or table of functions by its name.
    pub fn structure(&self, name: &str) -> Option<&Measured> {
        self.structures.iter().find(|structure| structure.name == name)
    }
}

impl Measured {
    fn declared(structure: &Structure, level: Level) -> Option<Self> {
        let known = structure.fields.iter().filter(|field| field.is_known_to(level));
        let fields = known.map(|field| MeasuredField {
            name: field.name.to_owned(),
            offset: field.offset,
            size: field.size_at(level),
        });
        level.has(structure.since).then(|| Self {
            name: structure.name.to_owned(),
            kind: structure.kind,
            size: structure.size_at(level),
            fields: fields.collect(),
        })
    }

    /// Returns a field by its name.
    pub fn field(&self, name: &str) -> Option<&MeasuredField> {
        self.fields.iter().find(|field| field.name == name)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "release {}", self.release)?;
        for structure in &self.structures {
            let Measured { name, size, .. } = structure;
            match structure.kind {
                Kind::Structure => writeln!(f, "struct {name} {size}")?,
                Kind::Table => writeln!(f, "table {name} {}", size / ENTRY)?,
            }
            for MeasuredField { name, offset, size } in &structure.fields {
                writeln!(f, "  {name} {offset} {size}")?;
            }
        }
        for (name, value) in &self.constants {
            writeln!(f, "const {name} {value}")?;
        }
        Ok(())
    }
}

impl FromStr for Table {
    type Err = TableError;

    fn from_str(text: &str) -> Result<Self, TableError> {
        let mut release = None;
        let mut structures: Vec<Measured> = Vec::new();
        let mut constants = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let wrong = |expected| TableError::Line {
                line: at + 1,
                text: line.to_owned(),
                expected,
            };
            match words[..] {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                ["release", level] => release = Some(level.parse().map_err(|_| wrong("release 1.17"))?),
                ["const", name, value] => {
                    let value = value.parse().map_err(|_| wrong("const NAME VALUE"))?;
                    constants.push((name.to_owned(), value));
                }
                ["struct", name, size] => {
                    let size = size.parse().map_err(|_| wrong("struct NAME SIZE"))?;
                    structures.push(measured(name, Kind::Structure, size));
                }
                ["table", name, entries] => {
                    let entries: usize = entries.parse().map_err(|_| wrong("table NAME ENTRIES"))?;
                    structures.push(measured(name, Kind::Table, entries.saturating_mul(ENTRY)));
                }
                [name, offset, size] if line.starts_with(' ') => {
                    let expected = "NAME OFFSET SIZE, indented, below a structure";
                    let field = field(name, offset, size).ok_or_else(|| wrong(expected))?;
                    let structure = structures.last_mut().ok_or_else(|| wrong(expected))?;
                    structure.fields.push(field);
                }
                _ => return Err(wrong("a release, a struct, a table, a field or a const")),
            }
        }
        Ok(Self {
            release: release.ok_or(TableError::NoRelease)?,
            structures,
            constants,
        })
    }
}

fn measured(name: &str, kind: Kind, size: usize) -> Measured {
    Measured {
        name: name.to_owned(),
        kind,
        size,
        fields: Vec::new(),
    }
}

fn field(name: &str, offset: &str, size: &str) -> Option<MeasuredField> {
    Some(MeasuredField {
        name: name.to_owned(),
        offset: offset.parse().ok()?,
        size: size.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_is_printed() {
        for level in [Level::OLDEST, Level::NEWEST, Level::NEXT] {
            let table = Table::declared(level);
            assert_eq!(table.to_string().parse(), Ok(table));
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, line) in [
            ("release x", 1),
            ("release 1.17\n  next 0 8", 2),
            ("release 1.17\n\n# a comment\nstruct fi_info", 4),
            ("release 1.17\nstruct fi_info 8\n next 0 eight", 3),
            ("release 1.17\nnext 0 8", 2),
            ("release 1.17\nconst FI_MSG -1", 2),
        ] {
            let error = text.parse::<Table>().unwrap_err();
            assert!(
                matches!(&error, TableError::Line { line: at, .. } if *at == line),
                "{error}"
            );
        }
        assert_eq!("struct fi_info 8".parse::<Table>(), Err(TableError::NoRelease));
    }
}
