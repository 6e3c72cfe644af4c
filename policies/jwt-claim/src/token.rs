//! A token in its compact form (JWS, RFC 7515), and what it says about itself. Does not know which
//! tokens are accepted.

use weir_policy::Json;

use crate::base64;

/// Maximum size of a token, in bytes.
pub(crate) const TOKEN_BYTES_MAX: usize = 8 << 10;

/// A token whose signature was not checked yet.
#[derive(Debug)]
pub(crate) struct Token<'a> {
    /// The name of its algorithm.
    pub(crate) alg: String,
    /// Names the key.
    pub(crate) kid: Option<String>,
    /// Which kind of token it is.
    pub(crate) typ: Option<String>,
    /// What was signed.
    pub(crate) message: &'a str,
    pub(crate) signature: Vec<u8>,
    pub(crate) claims: Json<'static>,
}

impl<'a> Token<'a> {
    /// Reads a token.
    ///
    /// # Errors
    /// Why it can't be accepted.
    pub(crate) fn read(text: &'a str) -> Result<Self, &'static str> {
        if text.len() > TOKEN_BYTES_MAX {
            return Err("the token is too long");
        }
        let malformed = "the token is malformed";
        let mut parts = text.split('.');
        let (Some(header), Some(payload), Some(signature)) =
            (parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed);
        };
        if parts.next().is_some() {
            return Err("the token is encrypted or malformed");
        }
        let header = object(header).ok_or(malformed)?;
        // It names extensions that must be understood, and none is.
        if header.get("crit").is_some() {
            return Err("the token needs extensions");
        }
        let member = |name: &str| Some(header.get(name)?.as_str()?.into_owned());
        let signed = text.len() - signature.len() - 1;
        Ok(Self {
            alg: member("alg").ok_or(malformed)?,
            kid: member("kid"),
            typ: member("typ"),
            message: text.get(..signed).ok_or(malformed)?,
            signature: base64::decode(signature).ok_or(malformed)?,
            claims: object(payload).ok_or(malformed)?,
        })
    }
}

fn object(part: &str) -> Option<Json<'static>> {
    let text = String::from_utf8(base64::decode(part)?).ok()?;
    Json::parse(&text).ok().filter(Json::is_table).map(Json::into_owned)
}
