//! The file of a report's page, `--report FILE.html`.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// The file of a page, whose folder is there.
#[derive(Clone, Debug)]
pub(crate) struct PageFile(PathBuf);

impl PageFile {
    /// Reads the option.
    ///
    /// # Errors
    /// A name that does not end in `.html`, which may be a source that was meant, and a folder that is not there.
    pub fn parse(text: &str) -> Result<Self> {
        let path = Path::new(text);
        if path.extension().is_none_or(|end| end != "html") {
            bail!("{text:?} does not end in .html; -v prints the whole report on the terminal");
        }
        let path = std::path::absolute(path).context("the working folder cannot be found")?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        if !folder.is_dir() {
            bail!("there is no folder {}; make it first", folder.display());
        }
        if path.is_dir() {
            bail!("{} is a folder; name a file in it", path.display());
        }
        Ok(Self(path))
    }

    /// Writes the page beside its name, and gives it the name.
    ///
    /// # Errors
    /// What the system said, with the path.
    pub fn write(&self, page: &str) -> Result<()> {
        let path = &self.0;
        let mut other = OsString::from(path);
        other.push(format!(".{}", std::process::id()));
        let write = || -> std::io::Result<()> {
            let mut file = std::fs::File::create_new(&other)?;
            file.write_all(page.as_bytes())?;
            drop(file);
            std::fs::rename(&other, path)
        };
        let written = write();
        if written.is_err() {
            let _ = std::fs::remove_file(&other);
        }
        written.with_context(|| format!("cannot write the report to {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page takes the place of an older one, and leaves nothing beside it; what cannot be a page is refused with what to do.
    #[test]
    fn pages_are_written_whole() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("report.html");
        std::fs::write(&path, "old").unwrap();
        let file = PageFile::parse(path.to_str().unwrap()).unwrap();
        file.write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
        let refused = |name: &str| {
            let path = place.path().join(name);
            PageFile::parse(path.to_str().unwrap())
                .unwrap_err()
                .to_string()
        };
        assert!(refused("absent/report.html").contains("make it first"));
        assert!(refused("data.bin").contains("-v prints"));
        std::fs::create_dir(place.path().join("x.html")).unwrap();
        assert!(refused("x.html").contains("is a folder"));
    }
}
