//! The token that the commands use: the file that is named, or the one in the default place.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use ropewalk_master::token;
pub use ropewalk_master::token::{TOKEN_LEN, from_hex, hex, parse};

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
        return Ok(token::read(file)?);
    }
    match default_path() {
        Some(path) if path.exists() => Ok(token::read(&path)?),
        Some(path) => bail!(
            "no token: {} does not exist; give --token-file FILE, or make one with `ropewalk agent --new-token FILE`",
            path.display()
        ),
        None => bail!("no token: give --token-file FILE (no HOME is set to look in)"),
    }
}

/// Writes a fresh token to a file that did not exist.
pub fn create(path: &Path) -> Result<[u8; TOKEN_LEN]> {
    Ok(token::create(path)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

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
