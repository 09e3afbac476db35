use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::error::Error;

fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

fn read(pairs: &[(&str, &str)], file: Option<&Path>) -> Result<Config, Error> {
    Config::from_variables(variables(pairs), file)
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn code_wins_over_environment_over_file_over_default() {
    let file = file("[wait]\nquiet = \"1 s\"\ndeadline = \"10 s\"\nclose = \"7 s\"\n");
    let mut config = read(
        &[("DOORBELL_DEADLINE", "20 s"), ("DOORBELL_QUIET", "2 s")],
        Some(file.path()),
    )
    .unwrap();
    config.wait.quiet.set(Duration::from_secs(4));
    let seconds = |setting: &Setting<Duration>| (setting.get().as_secs(), setting.origin().clone());
    assert_eq!(seconds(&config.wait.quiet), (4, Origin::Code));
    assert_eq!(
        seconds(&config.wait.deadline),
        (20, Origin::Environment("DOORBELL_DEADLINE"))
    );
    let line_4 = Origin::File {
        path: file.path().into(),
        line: 4,
    };
    assert_eq!(seconds(&config.wait.close), (7, line_4));
    assert_eq!(seconds(&config.job.timeout), (30, Origin::Default));
}

#[test]
fn the_file_may_be_named_by_a_variable() {
    let file = file("[rails]\nlist = [\"shm\", \"sim:3\"]\n[shm]\ncma = false\n[progress]\nspins = 17\n");
    let config = read(&[("DOORBELL_CONFIG", file.path().to_str().unwrap())], None).unwrap();
    assert_eq!(config.rails.list.get().0.len(), 2);
    assert!(!config.shm.cma.get());
    assert_eq!(*config.progress.spins.get(), Some(17));
}

#[test]
fn an_unknown_variable_names_the_nearest() {
    let error = read(&[("DOORBELL_DEADLNE", "1 s")], None).unwrap_err();
    assert!(error.to_string().contains("DOORBELL_DEADLINE"), "{error}");
    assert_eq!(error.code(), "config.unknown-name");
    assert!(
        read(
            &[
                ("DOORBELL_TEST_ANYTHING", "1"),
                ("DOORBELL_SKIP_FILE", "x"),
                ("OTHER", "1")
            ],
            None
        )
        .is_ok()
    );
}

#[test]
fn an_unknown_key_names_the_nearest_and_its_line() {
    let file = file("# a comment\n[wait]\ndedline = \"1 s\"\n");
    let error = read(&[], Some(file.path())).unwrap_err().to_string();
    assert!(error.contains("wait.deadline") && error.contains(":3"), "{error}");
}

#[test]
fn bad_values_say_what_was_expected_and_where_they_stand() {
    let error = read(&[("DOORBELL_DEADLINE", "0 s")], None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("wait.deadline")
            && error.contains("$DOORBELL_DEADLINE")
            && error.contains("above zero"),
        "{error}"
    );
    let error = read(&[("DOORBELL_RAILS", "smh")], None).unwrap_err().to_string();
    assert!(error.contains("shm"), "{error}");
}

#[test]
fn bad_files_are_errors_with_their_line() {
    for (text, line) in [
        ("[wait\n", 1),
        ("\nquiet = 3\n", 2),
        ("[wait]\nquiet = { a = 1 }\n", 2),
        ("[a]\n[a]\n", 2),
    ] {
        let file = file(text);
        let error = read(&[], Some(file.path())).unwrap_err();
        match &error {
            Error::ConfigFile { line: found, .. } => assert_eq!(*found, line, "{text:?}: {error}"),
            other => panic!("{text:?}: {other}"),
        }
    }
    let error = read(&[], Some(Path::new("/nonexistent/doorbell.toml"))).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/doorbell.toml"));
}

#[test]
fn the_listing_holds_every_setting_once_and_reads_back() {
    let config = Config::default();
    let list = config.list();
    let mut copy = Config::default();
    for line in &list {
        assert!(
            line.help.ends_with('.') && line.variable.starts_with("DOORBELL_"),
            "{}",
            line.name
        );
        assert_eq!(
            list.iter()
                .filter(|other| other.name == line.name || other.variable == line.variable)
                .count(),
            1
        );
        copy.set(line.name, &line.value).unwrap();
    }
    for (before, after) in list.iter().zip(copy.list()) {
        assert_eq!(
            (before.value.as_str(), "code"),
            (after.value.as_str(), after.origin.as_str())
        );
    }
    let json: serde_json::Value = serde_json::from_str(&config.to_json()).unwrap();
    assert_eq!(json.as_array().unwrap().len(), list.len());
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,40}", at in 0..FACTS.len()) {
        let mut config = Config::default();
        let _ = config.set(FACTS[at].name, &text);
        let _ = read(&[(FACTS[at].variable, &text)], None);
    }

    #[test]
    fn no_file_panics(text in "(\\[[a-z]{1,5}\\]|[a-z]{1,5}|=|\"|[0-9]|\n| ){0,40}") {
        let file = file(&text);
        let _ = read(&[], Some(file.path()));
    }
}
