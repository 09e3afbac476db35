//! Which modules a guest loads, and in which order: those that are named, and before them what they need.
//!
//! Debian's packages of kernels have no index of modules. Each module lists what it needs itself (`depends=`
//! in its section `.modinfo`), and `modules.builtin` names those that are in the kernel already.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// A module, unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Module {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// The modules of one kernel.
pub(super) struct Shelf {
    files: BTreeMap<String, PathBuf>,
    builtin: Vec<String>,
}

impl Shelf {
    /// Looks what lies in the folder `lib/modules/VERSION`.
    pub(super) fn of(folder: &Path) -> Result<Self, Error> {
        let mut files = BTreeMap::new();
        collect(&folder.join("kernel"), &mut files)?;
        let list = folder.join("modules.builtin");
        let builtin = fs::read_to_string(&list).map_err(Error::file("read", &list))?;
        Ok(Self {
            files,
            builtin: builtin.lines().filter_map(name_of).collect(),
        })
    }

    /// Returns the named ones and what they need, in an order in which they can be loaded. `unpack` gives the
    /// bytes of a file that may be compressed.
    pub(super) fn in_order(
        &self,
        names: &[&str],
        unpack: &mut dyn FnMut(&Path) -> Result<Vec<u8>, Error>,
    ) -> Result<Vec<Module>, Error> {
        let mut loaded = Vec::new();
        for name in names {
            self.load(name, &mut loaded, unpack, 0)?;
        }
        Ok(loaded)
    }

    fn load(
        &self,
        name: &str,
        loaded: &mut Vec<Module>,
        unpack: &mut dyn FnMut(&Path) -> Result<Vec<u8>, Error>,
        depth: usize,
    ) -> Result<(), Error> {
        /// Deeper than any chain of modules: they go round in a circle.
        const DEEPEST: usize = 32;
        if loaded.iter().any(|module| module.name == name) || self.builtin.iter().any(|known| known == name) {
            return Ok(());
        }
        let missing = || Error::Lab(format!("this kernel has no module {name}; look for its new name"));
        let file = self
            .files
            .get(name)
            .filter(|_| depth < DEEPEST)
            .ok_or_else(missing)?;
        let bytes = unpack(file)?;
        for needed in needs(&bytes) {
            self.load(&needed, loaded, unpack, depth + 1)?;
        }
        loaded.push(Module {
            name: name.to_owned(),
            bytes,
        });
        Ok(())
    }
}

fn collect(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), Error> {
    let listed = fs::read_dir(folder).map_err(Error::file("list", folder))?;
    for found in listed.flatten() {
        let path = found.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = name_of(&found.file_name().to_string_lossy()) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// Returns the name of the module in a file: modules call each other with underscores, whatever the files are
/// called.
fn name_of(file: &str) -> Option<String> {
    let last = file.trim().rsplit('/').next()?;
    let (stem, ending) = last.split_once(".ko")?;
    ["", ".xz", ".zst", ".gz"]
        .contains(&ending)
        .then(|| stem.replace('-', "_"))
}

/// Returns the modules that a module lists as needed.
fn needs(module: &[u8]) -> Vec<String> {
    const WORD: &[u8] = b"\0depends=";
    let Some(at) = module.windows(WORD.len()).position(|window| window == WORD) else {
        return Vec::new();
    };
    let list = module[at + WORD.len()..]
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or(&[]);
    let list = String::from_utf8_lossy(list);
    list.split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf(folder: &Path, modules: &[(&str, &str)], builtin: &str) -> Shelf {
        let kernel = folder.join("kernel/drivers/net");
        fs::create_dir_all(&kernel).unwrap();
        for (file, needed) in modules {
            let bytes = format!("\x7fELF license=GPL\0depends={needed}\0name=x\0");
            fs::write(kernel.join(file), bytes).unwrap();
        }
        fs::write(folder.join("modules.builtin"), builtin).unwrap();
        Shelf::of(folder).unwrap()
    }

    fn names(shelf: &Shelf, wanted: &[&str]) -> Result<Vec<String>, String> {
        let mut unpack = |path: &Path| fs::read(path).map_err(Error::file("read", path));
        match shelf.in_order(wanted, &mut unpack) {
            Ok(modules) => Ok(modules.into_iter().map(|module| module.name).collect()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn what_a_module_needs_comes_before_it_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let modules = [
            ("igb.ko.xz", "dca,i2c-algo-bit"),
            ("dca.ko.xz", ""),
            ("i2c-algo-bit.ko.zst", "i2c-core"),
            ("veth.ko", ""),
            ("modules.order", ""),
        ];
        let builtin = "kernel/drivers/i2c/i2c-core.ko\n";
        let shelf = shelf(folder.path(), &modules, builtin);
        let expected = ["dca", "i2c_algo_bit", "igb", "veth"].map(str::to_owned);
        assert_eq!(
            names(&shelf, &["igb", "dca", "veth", "i2c_core"]),
            Ok(expected.to_vec())
        );
        let error = names(&shelf, &["mlx5_core"]).unwrap_err();
        assert!(error.contains("mlx5_core"), "{error}");
    }

    #[test]
    fn modules_that_need_each_other_end_in_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = shelf(folder.path(), &[("a.ko", "b"), ("b.ko", "a")], "");
        assert!(names(&shelf, &["a"]).is_err());
    }

    #[test]
    fn a_module_without_a_list_needs_nothing() {
        assert_eq!(needs(b"\x7fELF"), Vec::<String>::new());
        assert_eq!(needs(b"x\0depends=a,b"), ["a", "b"]);
    }
}
