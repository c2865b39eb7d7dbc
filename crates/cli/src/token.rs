//! Token files: 64 hexadecimal digits, readable by their owner alone.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// A token is 256 bits.
pub const TOKEN_LEN: usize = 32;

/// Longest token file that is read: the digits and some white space.
const FILE_LEN_MAX: u64 = 1024;

/// Where the token is looked for when no file is named: `$XDG_CONFIG_HOME/ropewalk/token`, else
/// `~/.config/ropewalk/token`.
pub fn default_path() -> Option<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(config.join("ropewalk/token"))
}

/// The token in `file`, or in the default place.
pub fn load(file: Option<&Path>) -> Result<[u8; TOKEN_LEN]> {
    if let Some(file) = file {
        return read(file);
    }
    match default_path() {
        Some(path) if path.exists() => read(&path),
        Some(path) => bail!(
            "no token: {} does not exist; give --token-file FILE, or make one with `ropewalk agent --new-token FILE`",
            path.display()
        ),
        None => bail!("no token: give --token-file FILE (no HOME is set to look in)"),
    }
}

fn read(path: &Path) -> Result<[u8; TOKEN_LEN]> {
    let shown = path.display();
    let file =
        fs::File::open(path).with_context(|| format!("cannot read the token file {shown}"))?;
    let mode = file
        .metadata()
        .with_context(|| format!("cannot read the token file {shown}"))?
        .permissions()
        .mode();
    if mode & 0o077 != 0 {
        bail!(
            "the token file {shown} can be read by others (mode {:04o}); run: chmod 600 {shown}",
            mode & 0o7777
        );
    }
    let mut text = String::new();
    file.take(FILE_LEN_MAX)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read the token file {shown}"))?;
    parse(text.trim()).with_context(|| format!("{shown} is not a token file: it must hold 64 hexadecimal digits; make one with `ropewalk agent --new-token FILE`"))
}

/// The bytes of hexadecimal digits; `None` unless there are exactly `N` pairs.
pub fn parse<const N: usize>(text: &str) -> Option<[u8; N]> {
    <[u8; N]>::try_from(from_hex(text)?).ok()
}

/// Bytes from pairs of hexadecimal digits; `None` for anything else.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// Bytes as pairs of hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a fresh token to a file that did not exist.
pub fn create(path: &Path) -> Result<[u8; TOKEN_LEN]> {
    let mut token = [0; TOKEN_LEN];
    let random = fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut token));
    random.context("cannot read /dev/urandom")?;
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot make the folder {}", parent.display()))?;
    }
    let file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let mut file =
        file.with_context(|| format!("cannot make the token file {}", path.display()))?;
    let written = file
        .write_all(format!("{}\n", hex(&token)).as_bytes())
        .and_then(|()| file.sync_all());
    written.with_context(|| format!("cannot write the token file {}", path.display()))?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digits are read as they are written, and nothing else is a token.
    #[test]
    fn any_text_is_read_as_a_token() {
        let token = hex(&[0xa5; TOKEN_LEN]);
        let corpus = [
            token.to_uppercase().into_bytes(),
            token.into_bytes(),
            b"0".to_vec(),
        ];
        crate::mutate::fuzz("tokens", &corpus, |input| {
            let text = String::from_utf8_lossy(input);
            if let Some(token) = parse::<TOKEN_LEN>(&text) {
                assert_eq!(hex(&token), text.to_lowercase());
            }
        });
    }

    /// What is made reads back, is private, and is never overwritten.
    #[test]
    fn a_new_token_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/token");
        let token = create(&path).unwrap();
        assert_eq!(load(Some(&path)).unwrap(), token);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert!(format!("{:#}", create(&path).unwrap_err()).contains("File exists"));
    }

    /// Files that others can read and files with anything else inside are refused by name.
    #[test]
    fn unsafe_and_odd_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        create(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = format!("{:#}", load(Some(&path)).unwrap_err());
        assert!(
            error.contains("0640") && error.contains("chmod 600"),
            "{error}"
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for text in [
            "",
            "abc",
            &"0".repeat(63),
            &"0".repeat(66),
            &"g".repeat(64),
            &"é".repeat(32),
        ] {
            fs::write(&path, text).unwrap();
            let error = format!("{:#}", load(Some(&path)).unwrap_err());
            assert!(error.contains("64 hexadecimal digits"), "{text}: {error}");
        }
    }
}
