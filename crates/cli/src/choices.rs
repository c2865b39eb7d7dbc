//! Values of options that are chosen by name: wrappers of the one definition of each, which say what a value does.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use ropewalk_master::request::{
    Destinations, Launcher, MonitorKind, Relay, Same, Sources, Striping, Verify,
};

macro_rules! choices {
    ($(#[$attribute:meta])* $name:ident($of:ident) { $($value:ident: $help:literal),+ $(,)? }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub $of);

        impl ValueEnum for $name {
            fn value_variants<'a>() -> &'a [Self] {
                &[$(Self($of::$value)),+]
            }

            fn to_possible_value(&self) -> Option<PossibleValue> {
                let help = match self.0 {
                    $($of::$value => $help),+
                };
                Some(PossibleValue::new(self.0.name()).help(help))
            }
        }
    };
}

choices!(
    /// Whether receivers hand on what they have.
    RelayArg(Relay) {
        Auto: "Where several hosts receive the same bytes, and the plan gains by it",
        Off: "Never",
    }
);

choices!(
    /// How several sources relate.
    SourcesArg(Sources) {
        Auto: "On different hosts, with the same last name: equal trees (same paths, sizes and modification times) are \
               replicas, trees without a common path are parts, anything else is refused. Other sources are separate items",
        Replicas: "All hold the same: 'a[1-3]:/iso' is one image on three hosts; refused when paths, sizes or modification \
                   times differ (cp -p, rsync -t and ropewalk keep times)",
        Parts: "Each holds other files: 'a[1-3]:/out' is a result in three pieces; refused when two hold one path",
    }
);

choices!(
    /// What starts agents.
    LaunchArg(Launcher) {
        Slurm: "srun, in a job of Slurm: hosts are nodes of the job",
        Mpi: "The mpirun of Open MPI or MPICH that is in PATH: hosts are what it may start processes on",
    }
);

choices!(
    /// How several destinations relate.
    DestinationsArg(Destinations) {
        Copies: "Each gets a whole copy: 'b[1-3]:/iso' ends as three images",
        Shared: "They see one file system: 'b[1-3]:/lustre/iso' ends as one image that three hosts wrote",
    }
);

choices!(
    /// What is checked.
    VerifyArg(Verify) {
        None: "Nothing on plain lanes; the cipher's tag on encrypted ones",
        Fragment: "A checksum or tag for each frame",
        Tree: "Also a hash of each chunk, from the sender's disk to the receiver's sink",
        Sink: "Also each chunk read back from the receiver's disk",
        Replicas: "As tree, and all holders read and hash all they have: contents that differ end the transfer. With tree \
                   and sink a sample is compared",
    }
);

choices!(
    /// How files of the destination are compared with those of the sources.
    SameArg(Same) {
        Kept: "By size and modification time, as rsync does; links by their targets",
        Contents: "By size and contents, which both hosts hash, as rsync -c does; a file that is the same gets the source's time",
        Sent: "Not at all: every file is sent and replaced",
    }
);

choices!(
    /// What watches the receivers of rapid lanes.
    MonitorArg(MonitorKind) {
        Native: "Share of the processor, headroom, and the socket's queue",
        Linux26: "Sleep average and dynamic bonus of Linux 2.6",
        Ule: "Interactivity score of ULE, by the formula of the RAPID paper, section 3.2",
    }
);

choices!(
    /// How a host's data is spread over its streams.
    StripingArg(Striping) {
        Pull: "Each stream asks for the next piece when it has space",
        Equal: "Each stream has an equal part and keeps it, as PSockets; the first plan stays",
    }
);
