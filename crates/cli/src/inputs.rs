//! What a command reads that its job needs again: kept with the job, as it was when it was handed over to `serve`.

use serde::{Deserialize, Serialize, Serializer};

use crate::endpoint::Endpoint;

/// Bytes that are text as a rule: as JSON a string, or an array of numbers where they are not UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Form")]
pub(crate) struct Text(pub Vec<u8>);

/// What [`Text`] is read from.
#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Form> for Text {
    fn from(form: Form) -> Self {
        match form {
            Form::Text(text) => Self(text.into_bytes()),
            Form::Bytes(bytes) => Self(bytes),
        }
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => self.0.serialize(serializer),
        }
    }
}

/// What a command has read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inputs {
    /// The specification of a `transfer`.
    pub specification: Option<Text>,
    /// The names of --files-from, each with a byte 0 behind it.
    pub names: Option<Text>,
    /// The files of --exclude-from, in the order of the command line.
    pub patterns: Vec<Text>,
}

/// A command that is handed over.
#[derive(Default)]
pub(crate) struct Handed {
    /// Higher ones run first.
    pub priority: i32,
    /// As given; a request has its own.
    pub label: Option<String>,
    /// Sources as people write them, for a request that is not known in full.
    pub from: Vec<String>,
    /// Its destinations.
    pub to: Vec<Endpoint>,
    /// What the command has read.
    pub inputs: Inputs,
    /// The number of the job is printed as JSON.
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text takes about its own length, and any bytes are read back, also as they were written before.
    #[test]
    fn texts_are_short() {
        for bytes in [
            &b"a long path/with a name\0and more"[..],
            &[0xff, b'a'],
            b"",
        ] {
            let text = Text(bytes.to_vec());
            let json = serde_json::to_string(&text).unwrap();
            assert_eq!(serde_json::from_str::<Text>(&json).unwrap(), text);
            let numbers = serde_json::to_string(bytes).unwrap();
            assert_eq!(serde_json::from_str::<Text>(&numbers).unwrap(), text);
        }
        let json = serde_json::to_string(&Text(vec![b'x'; 1000])).unwrap();
        assert_eq!(json.len(), 1002);
    }
}
