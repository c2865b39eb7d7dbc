//! TLS 1.3 set-ups of the control connection and of the one handshake per pair of nodes.
//!
//! * Control: the agent shows a bare public key (RFC 7250) that is made from the token ([`is_control_key`]); the keys of the
//!   records that follow are made from the token and from the connection's exported key, which a man in the middle does not
//!   have ([`control`](crate::control)).
//! * Pair: mutual certificates from the transfer's own throw-away authority, whose key exists only
//!   in the master's memory and only while certificates are issued. Validity dates are therefore
//!   left wide: they would only make clock jumps fatal.
//!
//! Ed25519 keys, empty names and no session tickets keep both short: a control connection is opened to every node, and every
//! node is sent a certificate.
//!
//! After the pair handshake only exported keys are used ([`PAIR_LABEL`]); see [`seal`](crate::seal).

use std::sync::{Arc, OnceLock};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, IsCa, Issuer, KeyPair, PKCS_ED25519,
    SerialNumber,
};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{
    CertificateDer, Der, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    TrustAnchor, UnixTime,
};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

use ::aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};

use crate::preface::MacKey;

/// Exporter label of the key that seals a pair's streams.
pub const PAIR_LABEL: &[u8] = b"EXPORTER-ropewalk-pair";

/// Exporter label of what the keys of a control connection are made from, beside the token.
pub const CONTROL_LABEL: &[u8] = b"EXPORTER-ropewalk-control";

/// Why a TLS set-up could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Certificates or keys were not accepted.
    #[error("the transfer's certificates are not usable: {0}")]
    Rustls(#[from] rustls::Error),
    /// A certificate could not be made.
    #[error("a certificate cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// Of an Ed25519 key.
    #[error("a key cannot be made from its seed")]
    Seed,
    /// The authority is no Ed25519 key.
    #[error(
        "the transfer's authority is a key of {0} bytes instead of 32; install the same Ropewalk on all hosts"
    )]
    Authority(usize),
    /// The authority is not a certificate.
    #[error("the transfer's authority is not usable: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Certificate and key of one node.
#[derive(Clone)]
pub struct Identity {
    /// DER.
    pub certificate: Vec<u8>,
    /// Seed of its Ed25519 key, 32 bytes.
    pub seed: Vec<u8>,
}

impl std::fmt::Debug for Identity {
    // Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = PrivatePkcs8KeyDer::from([&ED25519_PKCS8[..], &self.seed].concat());
        (
            vec![CertificateDer::from(self.certificate.clone())],
            key.into(),
        )
    }
}

/// The authority of one transfer.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    public_key: Vec<u8>,
}

impl Authority {
    /// Makes a new authority.
    ///
    /// # Errors
    /// [`TlsError::Certificate`].
    pub fn new() -> Result<Self, TlsError> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = short(Vec::new(), 1)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let public_key = key.public_key_raw().to_vec();
        Ok(Self {
            issuer: Issuer::new(params, key),
            public_key,
        })
    }

    /// The authority's Ed25519 key, 32 bytes: all that its nodes need to know of it.
    pub fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// Issues the identity of a node.
    ///
    /// # Errors
    /// [`TlsError::Certificate`].
    pub fn issue(&self, node: u32) -> Result<Identity, TlsError> {
        let seed: [u8; 32] = crate::preface::random_bytes();
        let (_, private) = from_seed(&seed)?;
        let private = PrivatePkcs8KeyDer::from(private);
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&private, &PKCS_ED25519)?;
        let params = short(vec![node_name(node)], u64::from(node) + 2)?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity {
            certificate: certificate.der().to_vec(),
            seed: seed.to_vec(),
        })
    }
}

/// Parameters of a certificate without a word too many.
fn short(names: Vec<String>, serial: u64) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.serial_number = Some(SerialNumber::from(serial));
    Ok(params)
}

fn node_name(node: u32) -> String {
    format!("n{node}")
}

/// The name a peer's certificate must carry.
pub fn server_name(node: u32) -> ServerName<'static> {
    ServerName::try_from(node_name(node)).unwrap_or(ServerName::IpAddress(
        std::net::Ipv4Addr::UNSPECIFIED.into(),
    ))
}

/// Whether a verified certificate is that of this node.
pub fn names_node(certificate: &CertificateDer<'_>, node: u32) -> bool {
    rustls::server::ParsedCertificate::try_from(certificate)
        .is_ok_and(|parsed| rustls::client::verify_server_name(&parsed, &server_name(node)).is_ok())
}

/// Name for control connections, which no key has to match; an address, so that it is not sent.
pub fn control_name() -> ServerName<'static> {
    ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
}

/// The agent's key pair on control connections: whoever has the token can make it.
fn control_key(token: &[u8; 32]) -> Result<(SubjectPublicKeyInfoDer<'static>, Vec<u8>), TlsError> {
    let mut seed = crate::seal::derive(token, "control key of the agent", b"");
    let made = from_seed(&seed);
    crate::seal::wipe(&mut seed);
    let (public, private) = made?;
    let public = [&ED25519_SPKI[..], &ED25519_HEAD, &public].concat();
    Ok((public.into(), private))
}

/// The public key, 32 bytes, and PKCS #8 of an Ed25519 key.
fn from_seed(seed: &[u8; 32]) -> Result<([u8; 32], Vec<u8>), TlsError> {
    let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| TlsError::Seed)?;
    let mut public = [0; 32];
    public.copy_from_slice(pair.public_key().as_ref());
    Ok((public, [&ED25519_PKCS8[..], seed].concat()))
}

/// Whether an agent has shown the key that goes with this token.
pub fn is_control_key(token: &[u8; 32], shown: &CertificateDer<'_>) -> bool {
    control_key(token).is_ok_and(|(public, _)| *public == **shown)
}

/// Agent's side of control connections, with the key that goes with the token.
///
/// # Errors
/// [`TlsError`].
pub fn control_server(token: &[u8; 32]) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = control_provider();
    let (public, private) = control_key(token)?;
    let key = provider
        .key_provider
        .load_private_key(PrivatePkcs8KeyDer::from(private).into())?;
    let key = Arc::new(CertifiedKey::new(
        vec![CertificateDer::from(public.to_vec())],
        key,
    ));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// One cipher suite, one group: both ends are Ropewalk, and a longer list would be sent to every node.
fn control_provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        kx_groups: vec![aws_lc_rs::kx_group::X25519],
        ..aws_lc_rs::default_provider()
    })
}

/// Master's side of control connections: one set-up for all, which keeps nothing of any.
///
/// # Errors
/// [`TlsError`].
pub fn control_client() -> Result<Arc<ClientConfig>, TlsError> {
    static SHARED: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = SHARED.get() {
        return Ok(config.clone());
    }
    let provider = control_provider();
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyKey(provider)))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(SHARED.get_or_init(|| Arc::new(config)).clone())
}

/// What an Ed25519 key of 32 bytes stands behind in a certificate: its algorithm and the head of a bit string (RFC 8410) ...
const ED25519_HEAD: [u8; 10] = [0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// ... where that is no part of a certificate, behind this ...
const ED25519_SPKI: [u8; 2] = [0x30, 0x2a];

/// ... and a private one of 32 bytes behind this.
const ED25519_PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Trust in what the authority with this key has signed. Its name is empty, as [`short`] makes it.
fn roots(authority: &[u8]) -> Result<Arc<RootCertStore>, TlsError> {
    let authority =
        <&[u8; 32]>::try_from(authority).map_err(|_| TlsError::Authority(authority.len()))?;
    let anchor = TrustAnchor {
        subject: Der::from_slice(&[]),
        subject_public_key_info: Der::from([&ED25519_HEAD[..], authority].concat()),
        name_constraints: None,
    };
    Ok(Arc::new(RootCertStore {
        roots: vec![anchor],
    }))
}

/// Sender's side of pair handshakes: only holders of the transfer's certificates get through.
///
/// # Errors
/// [`TlsError`].
pub fn pair_server(identity: &Identity, authority: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(authority)?, provider())
        .clear_root_hint_subjects()
        .build()?;
    let (chain, key) = identity.parts();
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Receiver's side of pair handshakes.
///
/// # Errors
/// [`TlsError`].
pub fn pair_client(identity: &Identity, authority: &[u8]) -> Result<Arc<ClientConfig>, TlsError> {
    let (chain, key) = identity.parts();
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots(authority)?)
        .with_client_auth_cert(chain, key)?;
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// MAC key of a transfer's prefaces, from the secret its nodes share.
pub fn transfer_key(secret: &[u8]) -> MacKey {
    MacKey::new(&crate::seal::derive(secret, "preface", b""))
}

/// Accepts any key: which one it is counts after the handshake.
#[derive(Debug)]
struct AnyKey(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // Only TLS 1.3 is spoken.
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature_with_raw_key(
            message,
            &SubjectPublicKeyInfoDer::from(cert.as_ref()),
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was once sent where the authority's key is now, a whole certificate, is refused in words; so is no key at all.
    #[test]
    fn authorities_are_keys() {
        let authority = Authority::new().unwrap();
        let identity = authority.issue(3).unwrap();
        assert!(pair_server(&identity, authority.public_key()).is_ok());
        for wrong in [&identity.certificate[..], &[], &[0; 31], &[0; 33]] {
            let expected = format!("a key of {} bytes instead of 32", wrong.len());
            let errors = [
                pair_server(&identity, wrong).map(drop).unwrap_err(),
                pair_client(&identity, wrong).map(drop).unwrap_err(),
            ];
            for error in errors {
                assert!(error.to_string().contains(&expected), "{error}");
            }
        }
    }

    /// The certificate is that of the seed.
    #[test]
    fn seeds_make_keys() {
        let identity = Authority::new().unwrap().issue(5).unwrap();
        let (public, _) = from_seed(identity.seed.as_slice().try_into().unwrap()).unwrap();
        let held = identity.certificate.windows(32).any(|part| part == public);
        assert!(held);
    }
}
