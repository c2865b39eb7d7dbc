//! What a job does, and how its last run ended: what is kept of a job beside its place in the queue.

use serde::{Deserialize, Serialize};

use crate::inputs::{Inputs, Text};

/// What a job does: a command line, and where and with what it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Arguments behind the program's name: paths need not be UTF-8.
    pub arguments: Vec<Text>,
    /// The folder.
    pub folder: Text,
    /// Variables of the environment.
    pub environment: Vec<(String, Text)>,
    /// What the command has read.
    pub inputs: Inputs,
    /// As given.
    pub label: Option<String>,
    /// Sources as people write them; of many the first.
    pub from: Vec<String>,
    /// The same of destinations.
    pub to: Vec<String>,
    /// By what a command of another host knows it; none of a job of this host's user.
    #[serde(default)]
    pub key: Option<String>,
}

impl Task {
    /// The job has ended: what is shown of it stays, what a run needs goes.
    pub(super) fn end(&mut self) {
        self.arguments = Vec::new();
        self.folder = Text::default();
        self.environment = Vec::new();
        self.inputs = Inputs::default();
    }
}
