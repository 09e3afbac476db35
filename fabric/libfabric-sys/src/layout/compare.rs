//! What differs between the layouts that are declared here and those of a folder of headers.

use std::fmt;

use super::table::{Measured, Table};
use super::{Constant, Structure, constants, structures, tables};
use crate::level::Level;

/// Structures of headers that not every installation has: prefixes of their names.
const OPTIONAL: &[&str] = &["fi_usnic_"];

/// What the names of the tables begin with that objects have. Others are opened by a name, or given by a
/// caller, and are counted with the structures.
const OF_OBJECTS: &str = "fi_ops";

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The structure, table or constant.
    pub name: String,
    /// The field, if the difference is in one.
    pub field: Option<String>,
    /// What differs: "size", "offset", "value".
    pub what: &'static str,
    /// What is declared here; `None` where it is not declared.
    pub ours: Option<u64>,
    /// What the headers have; `None` where they do not have it.
    pub theirs: Option<u64>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(field) = &self.field {
            write!(f, ".{field}")?;
        }
        let value = |value: Option<u64>| value.map_or_else(|| "none".to_owned(), |value| value.to_string());
        let (ours, theirs) = (value(self.ours), value(self.theirs));
        write!(f, ": {} {ours} here, {theirs} in the headers", self.what)
    }
}

/// What a comparison came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The structures that both have.
    pub structures: usize,
    /// The tables of functions that both have.
    pub tables: usize,
    /// The fields and entries that both have.
    pub fields: usize,
    /// The constants that both have.
    pub constants: usize,
    /// Everything that differs.
    pub differences: Vec<Difference>,
}

impl fmt::Display for Comparison {
    /// Writes the counts in one line; the differences are lines of their own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            structures,
            tables,
            fields,
            constants,
            ..
        } = self;
        write!(
            f,
            "{structures} structures, {fields} fields, {tables} tables, {constants} constants: "
        )?;
        match self.differences.len() {
            0 => f.write_str("equal"),
            differing => write!(f, "{differing} differ"),
        }
    }
}

/// Compares what is declared here with what was measured.
pub fn with(theirs: &Table) -> Comparison {
    let mut comparison = Comparison::default();
    for ours in structures() {
        comparison.structures += usize::from(comparison.structure(ours, theirs));
    }
    for ours in tables() {
        let is_there = usize::from(comparison.structure(ours, theirs));
        if ours.name.starts_with(OF_OBJECTS) {
            comparison.tables += is_there;
        } else {
            comparison.structures += is_there;
        }
    }
    for ours in constants() {
        comparison.constant(ours, theirs);
    }
    let is_declared = |name: &str| structures().chain(tables()).any(|ours| ours.name == name);
    for other in theirs.structures.iter().filter(|other| !is_declared(&other.name)) {
        comparison.note(&other.name, None, "size", None, Some(other.size));
    }
    comparison
}

impl Comparison {
    fn note(
        &mut self,
        name: &str,
        field: Option<&str>,
        what: &'static str,
        ours: Option<usize>,
        theirs: Option<usize>,
    ) {
        self.differences.push(Difference {
            name: name.to_owned(),
            field: field.map(str::to_owned),
            what,
            ours: ours.map(|value| value as u64),
            theirs: theirs.map(|value| value as u64),
        });
    }

    /// Compares one structure; false where the headers do not have it.
    fn structure(&mut self, ours: &Structure, theirs: &Table) -> bool {
        let Some(measured) = theirs.structure(ours.name) else {
            let is_optional = OPTIONAL.iter().any(|prefix| ours.name.starts_with(prefix));
            if theirs.release.has(ours.since) && !is_optional {
                self.note(ours.name, None, "size", Some(ours.size_at(theirs.release)), None);
            }
            return false;
        };
        let level = level_of(ours, measured, theirs.release);
        let size = ours.size_at(level);
        if size != measured.size {
            self.note(ours.name, None, "size", Some(size), Some(measured.size));
        }
        self.fields(ours, measured, level);
        true
    }

    fn fields(&mut self, ours: &Structure, measured: &Measured, level: Level) {
        for field in ours.fields.iter().filter(|field| field.is_known_to(level)) {
            let name = Some(field.name);
            let Some(theirs) = measured.field(field.name) else {
                self.note(ours.name, name, "offset", Some(field.offset), None);
                continue;
            };
            self.fields += 1;
            if theirs.offset != field.offset {
                self.note(ours.name, name, "offset", Some(field.offset), Some(theirs.offset));
            }
            let size = field.size_at(level);
            if theirs.size != size {
                self.note(ours.name, name, "size", Some(size), Some(theirs.size));
            }
        }
        for theirs in measured
            .fields
            .iter()
            .filter(|theirs| ours.field(&theirs.name).is_none())
        {
            self.note(ours.name, Some(&theirs.name), "offset", None, Some(theirs.offset));
        }
    }

    fn constant(&mut self, ours: &Constant, theirs: &Table) {
        let Some((_, value)) = theirs.constants.iter().find(|(name, _)| name == ours.name) else {
            return;
        };
        self.constants += 1;
        if *value != ours.value {
            self.differences.push(Difference {
                name: ours.name.to_owned(),
                field: None,
                what: "value",
                ours: Some(ours.value),
                theirs: Some(*value),
            });
        }
    }
}

/// Returns the level by which a structure of some headers is to be judged: their release, or that of the
/// newest field that they have, since a development branch has the number of the release before it.
fn level_of(ours: &Structure, measured: &Measured, release: Level) -> Level {
    let present = ours
        .fields
        .iter()
        .filter(|field| measured.field(field.name).is_some());
    present.map(|field| field.since).fold(release, Level::later)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(table: &Table) -> Vec<String> {
        with(table).differences.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_declared_is_equal_to_itself_at_every_level() {
        for level in [
            Level::FIRST,
            Level::new(1, 9),
            Level::OLDEST,
            Level::NEWEST,
            Level::NEXT,
        ] {
            assert_eq!(texts(&Table::declared(level)), [""; 0], "{level}");
        }
    }

    #[test]
    fn a_moved_field_is_named_with_both_offsets() {
        let mut table = Table::declared(Level::NEWEST);
        let structure = table
            .structures
            .iter_mut()
            .find(|found| found.name == "fi_domain_attr")
            .unwrap();
        let field = structure
            .fields
            .iter_mut()
            .find(|field| field.name == "max_group_id")
            .unwrap();
        field.offset = 196;
        let text = "fi_domain_attr.max_group_id: offset 200 here, 196 in the headers";
        assert_eq!(texts(&table), [text]);
    }

    #[test]
    fn what_is_missing_or_new_on_either_side_is_named() {
        let mut table = Table::declared(Level::NEWEST);
        table
            .structures
            .retain(|found| found.name != "fi_context" && found.name != "fi_usnic_cap");
        let structure = table
            .structures
            .iter_mut()
            .find(|found| found.name == "fi_info")
            .unwrap();
        structure.size += 8;
        structure.fields.retain(|field| field.name != "mode");
        table.constants.push(("FI_MSG".to_owned(), 4));
        table
            .constants
            .retain(|(name, value)| name != "FI_MSG" || *value == 4);
        assert_eq!(
            texts(&table),
            [
                "fi_context: size 32 here, none in the headers",
                "fi_info: size 120 here, 128 in the headers",
                "fi_info.mode: offset 16 here, none in the headers",
                "FI_MSG: value 2 here, 4 in the headers",
            ]
        );
    }

    #[test]
    fn fields_of_a_development_branch_count_although_its_release_is_an_older_one() {
        let mut table = Table::declared(Level::NEXT);
        table.release = Level::NEWEST;
        assert_eq!(texts(&table), [""; 0]);
    }
}
