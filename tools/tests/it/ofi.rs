//! `doorbell doctor ofi` and the lines of `doorbell info` on libfabric, over the libfabric that is installed
//! and over files that are made up: providers that crash, or are none.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::{doorbell, sentence};

/// A provider's file in C: its name is ours, and this is the body of its getinfo.
fn provider(getinfo: &str) -> String {
    format!(
        "#include <stdlib.h>\n#include <unistd.h>\n\
         static int getinfo(void) {{ {getinfo} }}\n\
         static int fabric(void) {{ return -38; }}\n\
         static struct {{ unsigned version, level; void *own[4]; const char *name; int (*getinfo)(void), (*fabric)(void);\n\
         void (*cleanup)(void); }} it = {{ 1 << 16, 2 << 16 | 6, {{0}}, \"doorbell\", getinfo, fabric, 0 }};\n\
         void *fi_prov_ini(void) {{ return &it; }}\n"
    )
}

/// Compiles a library.
fn compile(folder: &Path, name: &str, text: &str) {
    let source = folder.join("source.c");
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new("gcc");
    command
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(folder.join(name));
    let out = command.arg(&source).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Why these tests cannot run here.
fn lacking() -> Option<String> {
    let cache = Command::new("/sbin/ldconfig").arg("-p").output();
    let has_library = cache.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("libfabric.so.1"));
    if !has_library {
        return Some("package libfabric1: no libfabric is installed".to_owned());
    }
    doorbell_testing::skip::lacking("gcc", "gcc")
}

/// The chain `ofi`, with the last step, of a provider in a folder.
fn last_step(folder: &Path) -> (Value, i32) {
    let out = doorbell()
        .args(["doctor", "ofi", "--json"])
        .current_dir(folder)
        .env("FI_PROVIDER_PATH", folder)
        .env_remove("FI_PROVIDER")
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    sentence(&out.stderr);
    let report: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|error| panic!("{error}: {out:?}"));
    let chains = report["chains"].as_array().unwrap();
    let chain = chains.iter().find(|chain| chain["rail"] == "ofi").unwrap();
    let last = chain["steps"].as_array().unwrap().last().unwrap().clone();
    (last, out.status.code().unwrap())
}

#[test]
fn the_chain_ends_at_the_first_thing_that_is_wrong_and_survives_providers_that_crash() {
    if let Some(reason) = lacking() {
        return doorbell_testing::skipped(
            "doorbell::it::ofi::the_chain_ends_at_the_first_thing_that_is_wrong_and_survives_providers_that_crash",
            &reason,
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let ends = |step: &str, words: &str| {
        let (last, code) = last_step(folder.path());
        assert_eq!((&last["step"], code), (&Value::from(step), 1), "{last:#}");
        assert!(last.to_string().contains(words), "{words}: {last:#}");
    };
    ends("path", "libdoorbell");
    compile(folder.path(), "libdoorbell-fi.so.1", &provider("return -61;"));
    ends("name", "does not end in");
    std::fs::write(folder.path().join("libdoorbell-fi.so"), "no library").unwrap();
    ends("load", "file too short");
    compile(folder.path(), "libdoorbell-fi.so", "int something;");
    ends("load", "no function fi_prov_ini");
    compile(folder.path(), "libdoorbell-fi.so", &provider("return -61;"));
    ends("getinfo", "does not list it");
    compile(
        folder.path(),
        "libdoorbell-fi.so",
        &provider("abort(); return -61;"),
    );
    ends("getinfo", "ended without an answer");
    let entries = std::fs::read_dir(folder.path()).unwrap().flatten();
    let names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names.len(), 3, "something was left behind: {names:?}");
}

#[test]
fn info_lists_the_libraries_and_whether_each_loads_the_file() {
    if let Some(reason) = lacking() {
        return doorbell_testing::skipped(
            "doorbell::it::ofi::info_lists_the_libraries_and_whether_each_loads_the_file",
            &reason,
        );
    }
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), "libdoorbell-fi.so", &provider("return -61;"));
    let info = |path: Option<&Path>| {
        let mut command = doorbell();
        command.args(["info", "--json"]).env_remove("FI_PROVIDER_PATH");
        if let Some(path) = path {
            command.env("FI_PROVIDER_PATH", path);
        }
        let out = command.assert().success();
        let info: Value = serde_json::from_slice(&out.get_output().stdout).unwrap();
        info["libfabric"].clone()
    };
    let found = info(Some(folder.path()));
    let file = folder.path().join("libdoorbell-fi.so").display().to_string();
    assert_eq!(found["providers"][0]["path"], file, "{found:#}");
    assert_eq!(found["providers"][0]["level"], "2.6");
    assert_eq!(found["libraries"][0]["loads"], file, "{found:#}");
    let found = info(None);
    assert!(found["libraries"][0]["loads"].is_null(), "{found:#}");
}
