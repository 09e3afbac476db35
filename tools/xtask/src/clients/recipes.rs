//! How each client is built, and what its tests are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Stage;
use super::trees::Client;
use crate::error::Error;
use crate::workshop::{copied, once};

/// The tests of a client, ready to run.
pub(crate) struct Suite {
    pub(crate) client: Client,
    pub(crate) launcher: Launcher,
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// Added to `environment` where there are more ranks than cores.
    pub(crate) crowded: Option<(&'static str, &'static str)>,
    /// The folders of its own libraries.
    pub(crate) libraries: Vec<PathBuf>,
    pub(crate) cases: Vec<Case>,
}

/// One test of a client.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// It makes no sense with fewer ranks.
    pub(crate) least: u32,
    /// Whether its output reports a failure that its exit status does not.
    pub(crate) failed: fn(&str) -> bool,
}

/// What starts the ranks.
pub(crate) enum Launcher {
    /// MPICH's, which speaks PMI-1.
    Hydra,
    /// The client's own.
    Own {
        mpirun: PathBuf,
        words: Vec<&'static str>,
    },
}

impl Case {
    fn new(name: impl Into<String>, program: PathBuf) -> Self {
        Self {
            name: name.into(),
            program,
            arguments: Vec::new(),
            least: 1,
            failed: |_| false,
        }
    }
}

/// Builds a client, as far as it is not built yet.
pub(crate) fn build(stage: &Stage, client: Client, tree: &Path) -> Result<Suite, Error> {
    match client {
        Client::Reference => reference(stage, tree),
        Client::OpenMpi => open_mpi(stage, tree),
        Client::OpenShmem => open_shmem(stage, tree),
        Client::Gasnet => gasnet(stage, tree),
        Client::Mpi4py => mpi4py(stage, tree),
    }
}

fn make(stage: &Stage, folder: &Path, targets: &[&str], name: &str) -> Result<(), Error> {
    stage.shop.make(folder, targets, name)
}

/// Runs a configure script outside of its tree.
fn configure(stage: &Stage, tree: &Path, folder: &Path, words: &[String], name: &str) -> Result<(), Error> {
    let script = tree.join("configure");
    if !script.is_file() {
        return Err(Error::Lab(format!(
            "{} is not there; take a release, or run the tree's autogen first",
            script.display()
        )));
    }
    let mut command = Command::new(script);
    command.args(words).current_dir(folder);
    command.env("PORTALS4HOME", stage.installed());
    stage.built(&mut command, name)
}

/// Returns the options with which gcc finds and links our library.
fn against_ours(stage: &Stage) -> [String; 3] {
    let prefix = stage.installed();
    let lib = prefix.join("lib");
    [
        format!("-I{}", prefix.join("include").display()),
        format!("-L{}", lib.display()),
        format!("-Wl,-rpath,{}", lib.display()),
    ]
}

/// Builds the PMI library that comes with the reference: its tests and GASNet link it.
pub(crate) fn pmi(stage: &Stage, tree: &Path) -> Result<(), Error> {
    let runtime = tree.join("src/runtime");
    let include = stage.folder("prefix/include/portals4")?;
    copied(&runtime.join("portals4/pmi.h"), &include.join("pmi.h"))?;
    let config = stage.folder("pmi")?;
    // The options that its own configure would find here.
    let found: String = [
        "UNISTD_H",
        "STDLIB_H",
        "STRING_H",
        "STRINGS_H",
        "ERRNO_H",
        "FCNTL_H",
        "NETDB_H",
        "SYS_SOCKET_H",
        "SYS_TYPES_H",
        "SYS_PARAM_H",
        "NETINET_IN_H",
        "NETINET_TCP_H",
    ]
    .iter()
    .map(|name| format!("#define HAVE_{name} 1\n"))
    .collect();
    let file = config.join("config.h");
    std::fs::write(&file, found).map_err(Error::file("create", &file))?;
    let mut command = Command::new("gcc");
    command.args(["-shared", "-fPIC", "-O1", "-w", "-I"]).arg(&config);
    command.arg("-I").arg(runtime.join("portals4"));
    for source in ["simple_pmi.c", "simple_pmiutil.c"] {
        command.arg(runtime.join("pmi-simple").join(source));
    }
    command
        .arg("-o")
        .arg(stage.installed().join("lib/libportals_runtime.so"));
    stage.built(&mut command, "pmi")
}

fn reference(stage: &Stage, tree: &Path) -> Result<Suite, Error> {
    let folder = stage.folder("reference")?;
    let list = tree.join("test/basic/Makefile.am");
    let text = std::fs::read_to_string(&list).map_err(Error::file("read", &list))?;
    let mut cases = Vec::new();
    for test in programs_of(&text) {
        let program = folder.join(&test.name);
        let mut command = Command::new("gcc");
        command
            .args(["-w", "-O1"])
            .args(against_ours(stage))
            .args(&test.defines);
        command.arg("-I").arg(stage.folder("pmi")?);
        for folder in ["test", "src/runtime", "src/runtime/portals4"] {
            command.arg("-I").arg(tree.join(folder));
        }
        command.arg(tree.join("test/basic").join(&test.source));
        command
            .arg(tree.join("test/support.c"))
            .arg(tree.join("test/pmi.c"));
        command
            .args(["-lportals", "-lportals_runtime", "-lpthread", "-lm", "-o"])
            .arg(&program);
        once(&folder, &test.name, || stage.built(&mut command, &test.name))?;
        cases.push(Case::new(test.name, program));
    }
    Ok(Suite {
        client: Client::Reference,
        launcher: Launcher::Hydra,
        environment: Vec::new(),
        crowded: None,
        libraries: Vec::new(),
        cases,
    })
}

/// A test program as a Makefile.am has it.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    name: String,
    source: String,
    defines: Vec<String>,
}

/// Returns the programs of `TESTS`, with their sources and definitions.
fn programs_of(makefile: &str) -> Vec<Program> {
    let text = makefile.replace("\\\n", " ");
    let value = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| {
            line.strip_prefix(name)?
                .trim_start()
                .strip_prefix('=')
                .map(str::trim)
        })
    };
    let words = |name: &str| value(name).unwrap_or("").split_whitespace().map(str::to_owned);
    words("TESTS")
        .map(|name| Program {
            source: words(&format!("{name}_SOURCES"))
                .next()
                .unwrap_or_else(|| format!("{name}.c")),
            defines: words(&format!("{name}_CPPFLAGS"))
                .filter(|word| word.starts_with("-D"))
                .collect(),
            name,
        })
        .collect()
}

fn open_mpi(stage: &Stage, tree: &Path) -> Result<Suite, Error> {
    let folder = stage.folder("openmpi")?;
    let prefix = stage.folder("openmpi/installed")?;
    let words = [
        format!("--prefix={}", prefix.display()),
        format!("--with-portals4={}", stage.installed().display()),
        "--disable-mpi-fortran".to_owned(),
        "--disable-oshmem".to_owned(),
        "--disable-io-romio".to_owned(),
        "--disable-man-pages".to_owned(),
        "--without-ucx".to_owned(),
        "--without-ofi".to_owned(),
        "--without-verbs".to_owned(),
        "--with-hwloc=internal".to_owned(),
        "--with-libevent=internal".to_owned(),
        "--with-pmix=internal".to_owned(),
        "CFLAGS=-O1".to_owned(),
    ];
    once(&folder, "configure", || {
        configure(stage, tree, &folder, &words, "openmpi-configure")
    })?;
    once(&folder, "make", || make(stage, &folder, &[], "openmpi-make"))?;
    once(&folder, "install", || {
        make(stage, &folder, &["install"], "openmpi-install")
    })?;
    let program = folder.join("mpi");
    let mut command = Command::new(prefix.join("bin/mpicc"));
    command
        .args(["-std=gnu11", "-O1"])
        .arg(stage.root.join("am/portals/abi/clients/mpi.c"));
    command.arg("-o").arg(&program);
    stage.built(&mut command, "openmpi-mpi")?;
    let names = listed_by(&mut Command::new(&program))?;
    let case = |name: &str| Case {
        arguments: vec![name.into()],
        least: 2,
        ..Case::new(name, program.clone())
    };
    Ok(Suite {
        client: Client::OpenMpi,
        launcher: open_mpi_launcher(&prefix, &[]),
        environment: Vec::new(),
        crowded: None,
        libraries: Vec::new(),
        cases: names.lines().map(case).collect(),
    })
}

/// Runs a program that lists its tests, and returns its output.
fn listed_by(command: &mut Command) -> Result<String, Error> {
    let listed = command.output().map_err(|source| Error::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    Ok(String::from_utf8_lossy(&listed.stdout).into_owned())
}

/// Open MPI's `mpirun`, with what is ours chosen for everything, and further words.
fn open_mpi_launcher(prefix: &Path, further: &[&'static str]) -> Launcher {
    const WORDS: &str = "--allow-run-as-root --oversubscribe --bind-to none --mca pml cm --mca mtl portals4 \
                         --mca osc portals4 --mca mpi_yield_when_idle 1 -x LD_LIBRARY_PATH -x DOORBELL_RAILS";
    Launcher::Own {
        mpirun: prefix.join("bin/mpirun"),
        words: WORDS.split_whitespace().chain(further.iter().copied()).collect(),
    }
}

/// Tests of mpi4py that end the process, or leave messages behind: each is run by itself, and the module's
/// others without it.
const SPOILS_THE_OTHERS: [(&str, &str); 6] = [
    ("test_cco_vec", "testAlltoallwBottom"),
    ("test_p2p_buf_matched", "testIMProbe"),
    ("test_p2p_buf_matched", "testProbeRecv"),
    ("test_p2p_obj", "testManyISendAndRecv"),
    ("test_rma", "testCompareAndSwap"),
    ("test_rma", "testFetchAndOp"),
];

fn mpi4py(stage: &Stage, tree: &Path) -> Result<Suite, Error> {
    let prefix = stage.folder("openmpi/installed")?;
    let mpicc = prefix.join("bin/mpicc");
    if !mpicc.is_file() {
        return Err(Error::Lab(
            "mpi4py needs Open MPI; put that tree beside it".to_owned(),
        ));
    }
    let tree = stage.shop.copy_of(tree, "mpi4py")?;
    let folder = stage.folder("mpi4py")?;
    let lib = folder.join("lib");
    once(&folder, "build", || {
        let mut command = Command::new("python3");
        command.args(["setup.py", "build"]).current_dir(&tree);
        command.arg(format!("--build-base={}", folder.join("build").display()));
        command.arg(format!("--build-lib={}", lib.display()));
        command.arg(format!("--mpicc={}", mpicc.display()));
        stage.built(&mut command, "mpi4py-build")
    })?;
    let script = stage.root.join("am/portals/abi/clients/mpi4py_tests.py");
    let words = [script.into_os_string(), tree.join("test").into_os_string()];
    let mut command = Command::new("python3");
    command.args(&words);
    let mut cases = Vec::new();
    for module in listed_by(&mut command)?.lines() {
        let case = |name: String, further: &[&str]| Case {
            arguments: words
                .iter()
                .cloned()
                .chain([module].iter().chain(further).map(OsString::from))
                .collect(),
            ..Case::new(name, PathBuf::from("python3"))
        };
        let ending = SPOILS_THE_OTHERS.iter().filter(|(of, _)| *of == module);
        let mut rest = Vec::new();
        for (_, test) in ending {
            cases.push(case(format!("{module}.{test}"), &["--only", test]));
            rest.push(*test);
        }
        if !rest.is_empty() {
            rest.insert(0, "--without");
        }
        cases.push(case(module.to_owned(), &rest));
    }
    Ok(Suite {
        client: Client::Mpi4py,
        launcher: open_mpi_launcher(&prefix, &["-x", "PYTHONPATH", "--mca", "coll", "^portals4"]),
        environment: vec![("PYTHONPATH", lib.into_os_string())],
        crowded: None,
        libraries: Vec::new(),
        cases,
    })
}

fn open_shmem(stage: &Stage, tree: &Path) -> Result<Suite, Error> {
    if !tree.join("modules/tests-sos/test").is_dir() {
        return Err(Error::Lab(format!(
            "{} has no modules/tests-sos; run `git submodule update --init` there",
            tree.display()
        )));
    }
    let tree = stage.shop.with_configure(tree, &["autogen.sh"], "openshmem")?;
    let client = Client::OpenShmem;
    let (name, network) = match &stage.libfabric {
        None => (
            client.to_string(),
            vec![format!("--with-portals4={}", stage.installed().display())],
        ),
        Some(libfabric) => {
            let with = match &libfabric.prefix {
                None => "--with-ofi".to_owned(),
                Some(prefix) => format!("--with-ofi={}", prefix.display()),
            };
            // What stays on the host is to go through the provider as well, which is its default.
            let manual = libfabric.is_manual.then(|| "--enable-manual-progress".to_owned());
            (
                libfabric.folder(client),
                [with].into_iter().chain(manual).collect(),
            )
        }
    };
    let folder = stage.folder(&name)?;
    let words: Vec<String> = network
        .into_iter()
        .chain(
            [
                "--enable-pmi-simple",
                "--enable-error-checking",
                "--disable-fortran",
                "CFLAGS=-O1",
                "CXXFLAGS=-O1",
            ]
            .map(str::to_owned),
        )
        .collect();
    once(&folder, "configure", || {
        configure(stage, &tree, &folder, &words, &format!("{name}-configure"))
    })?;
    once(&folder, "make", || {
        make(stage, &folder, &[], &format!("{name}-make"))
    })?;
    once(&folder, "tests", || {
        make(stage, &folder, &["check", "TESTS="], &format!("{name}-tests"))
    })?;
    let mut cases = Vec::new();
    // Programs that need its libraries lie in `.libs`: those beside them are scripts, which link again when
    // they are started.
    for below in [
        "modules/tests-sos/test/unit",
        "modules/tests-sos/test/shmemx",
        "modules/tests-sos/test/spec-example",
        "examples",
    ] {
        let built = folder.join(below);
        for place in [built.join(".libs"), built] {
            let programs = if place.is_dir() {
                programs_in(&place)?
            } else {
                Vec::new()
            };
            for program in programs {
                let name = program
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                cases.push(Case::new(name, program));
            }
        }
    }
    Ok(Suite {
        client,
        launcher: Launcher::Hydra,
        environment: vec![("SHMEM_SYMMETRIC_SIZE", "64M".into())],
        crowded: None,
        libraries: vec![folder.join("src/.libs"), folder.join("pmi-simple/.libs")],
        cases,
    })
}

fn gasnet(stage: &Stage, tree: &Path) -> Result<Suite, Error> {
    if !stage.installed().join("lib/libportals_runtime.so").is_file() {
        return Err(Error::Lab(
            "GASNet needs the PMI library of Sandia's Portals 4; put that tree beside it".to_owned(),
        ));
    }
    let tree = stage
        .shop
        .with_configure(tree, &["Bootstrap", "-y", "-n"], "gasnet")?;
    let folder = stage.folder("gasnet")?;
    let words: Vec<String> = ["ibv", "mpi", "udp", "smp", "mxm", "psm", "ofi", "pami", "pshm"]
        .iter()
        .map(|conduit| format!("--disable-{conduit}"))
        .chain(["--enable-portals4".to_owned(), "--disable-parsync".to_owned()])
        // Its tests define what its library defines, which compilers since GCC 10 refuse.
        .chain(["CC=gcc -fcommon".to_owned()])
        .collect();
    once(&folder, "configure", || {
        configure(stage, &tree, &folder, &words, "gasnet-configure")
    })?;
    once(&folder, "make", || make(stage, &folder, &[], "gasnet-make"))?;
    let conduit = folder.join("portals4-conduit");
    let mut cases = Vec::new();
    for threads in ["seq", "par"] {
        let programs = stage.folder(&format!("gasnet/{threads}"))?;
        // Both build programs of the same names in the same folder: those of the other one, or of a run that
        // was cut off, are no programs of this one.
        once(&programs, "tests", || {
            // Some do not compile with today's C library: those that are built are run, and their number is
            // in the table.
            let target = format!("tests-{threads}");
            for program in programs_in(&conduit)? {
                std::fs::remove_file(&program).map_err(Error::file("remove", &program))?;
            }
            let made = make(stage, &conduit, &["-k", &target], &format!("gasnet-{target}"));
            let built = programs_in(&conduit)?;
            if built.is_empty() {
                return made;
            }
            for program in built {
                let to = programs.join(program.file_name().unwrap_or_default());
                copied(&program, &to)?;
            }
            Ok(())
        })?;
        for program in programs_in(&programs)? {
            let name = program
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let arguments = short_run(&name);
            cases.push(Case {
                arguments: arguments.iter().map(OsString::from).collect(),
                failed: |output| output.contains("ERROR:") || output.contains("FAILED"),
                ..Case::new(format!("{name}-{threads}"), program)
            });
        }
    }
    Ok(Suite {
        client: Client::Gasnet,
        launcher: Launcher::Hydra,
        environment: vec![
            ("GASNET_MAX_SEGSIZE", "256MB".into()),
            ("GASNET_QUIET", "1".into()),
        ],
        // Its own switch for this: waits and barriers of its tests give up the core instead of spinning.
        crowded: Some(("GASNET_TEST_POLITE_SYNC", "1")),
        libraries: Vec::new(),
        cases,
    })
}

/// Arguments with which a test of GASNet takes seconds: its own are for a cluster.
fn short_run(name: &str) -> &'static [&'static str] {
    match name {
        "testalign" | "testnbr" | "testvis" | "testmemset" | "testrand" => &["1"],
        // Bytes of the longest transfer, and rounds.
        "testvisperf" => &["-maxdata", "65536", "1"],
        "testval" => &["1000"],
        // Rounds, polls between two operations, and sizes.
        "testlogGP" => &["100", "1", "8", "512", "4096"],
        // Bytes, rounds of two loops that check, and one that measures.
        "testcollperf" => &["256", "1", "1", "1"],
        "testqueue" => &["1", "64"],
        "testhsl" => &["0"],
        "testsmall" | "testlarge" => &["10"],
        "testcoll" => &["2"],
        "testbarrier" | "testbarrierlate" | "testteambarrier" | "testbarrierconf" => &["100"],
        "testmisc" => &["1000"],
        // Threads, and rounds.
        "testcontend" => &["3", "20"],
        "testlockcontend" => &["4", "1000"],
        "testam" | "testcore1" => &["20"],
        _ => &[],
    }
}

/// Returns the programs in a folder, by name: what can be run and is no script.
fn programs_in(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    use std::os::unix::fs::PermissionsExt as _;
    let entries = std::fs::read_dir(folder).map_err(Error::file("read", folder))?;
    let mut programs: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| {
            let is_program = entry
                .metadata()
                .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0);
            is_program && starts_with(&entry.path(), b"\x7fELF")
        })
        .map(|entry| entry.path())
        .collect();
    programs.sort();
    Ok(programs)
}

fn starts_with(file: &Path, bytes: &[u8]) -> bool {
    use std::io::Read as _;
    let mut found = vec![0; bytes.len()];
    let read = std::fs::File::open(file).and_then(|mut file| file.read_exact(&mut found));
    read.is_ok() && found == bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_read_from_a_makefile() {
        let text = "AM_X = 1\nTESTS = \\\n\ttest_init \\\n\ttest_LE_put\n\nEXTRA_TESTS = test_other\n\
                    test_LE_put_SOURCES = test_put.c\ntest_LE_put_CPPFLAGS = $(AM_CPPFLAGS)  -DMATCHING=0 -DPHYSICAL_ADDR=1\n";
        let found = programs_of(text);
        let names: Vec<_> = found.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["test_init", "test_LE_put"]);
        assert_eq!(found[0].source, "test_init.c");
        assert_eq!(found[1].source, "test_put.c");
        assert_eq!(found[1].defines, ["-DMATCHING=0", "-DPHYSICAL_ADDR=1"]);
    }

    #[test]
    fn scripts_are_no_programs() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::env::current_exe().unwrap();
        std::fs::copy(own, folder.path().join("program")).unwrap();
        std::fs::write(folder.path().join("data"), b"\x7fELF").unwrap();
        std::fs::write(folder.path().join("script"), "#!/bin/sh\n").unwrap();
        let found = programs_in(folder.path()).unwrap();
        assert_eq!(found, [folder.path().join("program")]);
    }
}
