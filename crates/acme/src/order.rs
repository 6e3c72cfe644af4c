//! One order, from its names to the certificate in its file.

use std::path::Path;

use instant_acme::{
    Account, AuthorizationHandle, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error,
    Identifier, NewOrder, Order, OrderStatus,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use weir_tls::Pem;

use crate::authority::{Authority, ChallengeKind};
use crate::challenge::{Answer, Challenges};
use crate::client::Client;
use crate::due::usable;
use crate::error::{OrderError, may_be_about_replacing, text};
use crate::{account, folder, wait};

/// A certificate to order.
pub(crate) struct Wanted<'a> {
    pub(crate) authority: &'a Authority,
    pub(crate) names: &'a [String],
    /// Where it is written.
    pub(crate) file: &'a Path,
    /// The certificate that it is to replace, if the authority wants to know.
    pub(crate) replaces: Option<CertificateIdentifier<'static>>,
    /// Proofs that failed before this, in a row: the next challenge is tried.
    pub(crate) unproven: u32,
}

impl Wanted<'_> {
    /// Orders it, and writes it into its file. Whoever calls this has the turn.
    pub(crate) async fn order(self, client: &Client) -> Result<(), OrderError> {
        let account = account::of(self.authority, client).await?;
        let mut order = self.place(&account).await?;
        let answers = self.answer(&mut order).await?;
        let proven = wait::until(client, async || {
            let state = order.refresh().await?;
            Ok(match state.status {
                _ if state.error.is_some() => Some(false),
                OrderStatus::Ready => Some(true),
                OrderStatus::Invalid => Some(false),
                _ => None,
            })
        });
        match proven.await {
            Ok(true) => {}
            Ok(false) => {
                let why = order.state().error.as_ref();
                let why = why.map_or_else(|| "no reason given".to_owned(), text);
                let failed = unproven(&mut order).await;
                return Err(failed.unwrap_or(OrderError::Refused(why)));
            }
            // Some authorities go on looking after they have seen nothing.
            Err(OrderError::Late) => {
                return Err(unproven(&mut order).await.unwrap_or(OrderError::Late));
            }
            Err(error) => return Err(error),
        }
        drop(answers);
        let pem = self.finish(&mut order, client).await?;
        let written = folder::write(self.file, pem.as_bytes());
        written.map_err(|error| OrderError::folder(self.file, &error))
    }

    /// Places the order. Whatever the authority has against replacing a certificate must not keep
    /// us from having one.
    async fn place(&self, account: &Account) -> Result<Order, OrderError> {
        let identifiers: Vec<_> =
            self.names.iter().map(|name| Identifier::Dns(name.clone())).collect();
        let new = || {
            let new = NewOrder::new(&identifiers);
            match &self.authority.profile {
                Some(profile) => new.profile(profile),
                None => new,
            }
        };
        let placed = match &self.replaces {
            Some(replaces) => match account.new_order(&new().replaces(replaces.clone())).await {
                Err(error) if may_be_about_replacing(&error) => account.new_order(&new()).await,
                placed => placed,
            },
            None => account.new_order(&new()).await,
        };
        placed.map_err(|error| account::refused(self.authority, error))
    }

    /// Answers the challenges for all names, and tells the authority to look. The answers are given
    /// while what is returned lives.
    async fn answer(&self, order: &mut Order) -> Result<Vec<Answer>, OrderError> {
        let challenges = Challenges::new(&self.authority.folder);
        let mut answers = Vec::new();
        let mut all = order.authorizations();
        while let Some(authorization) = all.next().await {
            let mut authorization = authorization?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let name = name_of(&authorization);
            // It becomes a part of a path.
            if !self.names.contains(&name) {
                let why = format!("it asks for proof of {name:?}, which is not in the order");
                return Err(OrderError::Refused(why));
            }
            let kind = self.choose(&authorization, &name)?;
            let Some(mut challenge) = authorization.challenge(kind.clone()) else { continue };
            let authorized = challenge.key_authorization();
            answers.push(
                match kind {
                    ChallengeType::TlsAlpn01 => {
                        challenges.answer_tls(&name, authorized.digest().as_ref())
                    }
                    _ => challenges.answer_http(&challenge.token, authorized.as_str()),
                }
                .map_err(|error| OrderError::folder(&self.authority.folder, &error))?,
            );
            challenge.set_ready().await?;
        }
        Ok(answers)
    }

    /// The first of our challenges that the authority offers; after each proof that failed, the
    /// next.
    fn choose(
        &self,
        authorization: &AuthorizationHandle<'_>,
        name: &str,
    ) -> Result<ChallengeType, OrderError> {
        let ours = self.authority.challenges.iter().map(|kind| match kind {
            ChallengeKind::Http01 => ChallengeType::Http01,
            ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
        });
        let offered = |kind: &ChallengeType| {
            authorization.challenges.iter().any(|challenge| challenge.r#type == *kind)
        };
        let offered: Vec<_> = ours.filter(offered).collect();
        let turn = usize::try_from(self.unproven).unwrap_or_default() % offered.len().max(1);
        offered.into_iter().nth(turn).ok_or_else(|| {
            let why = "it offers none of the challenges that are configured".to_owned();
            OrderError::Unproven { name: name.to_owned(), why }
        })
    }

    /// Has the certificate issued for a new key. Returns both as PEM.
    async fn finish(&self, order: &mut Order, client: &Client) -> Result<String, OrderError> {
        let made = || {
            let key = KeyPair::generate()?;
            let mut params = CertificateParams::new(self.names)?;
            params.distinguished_name = DistinguishedName::new();
            let request = params.serialize_request(&key)?;
            Ok::<_, rcgen::Error>((key.serialize_pem(), request))
        };
        let (key, request) = made().map_err(|error| OrderError::Unusable(error.to_string()))?;
        order.finalize_csr(request.der()).await?;
        let chain = wait::until(client, async || {
            let state = order.refresh().await?;
            match (&state.error, state.status) {
                (Some(error), _) => Err(Error::Api(error.clone())),
                (None, OrderStatus::Valid | OrderStatus::Invalid) => order.certificate().await,
                (None, _) => Ok(None),
            }
        });
        let chain = chain.await?;
        let pem = format!("{}\n{}\n", key.trim_end(), chain.trim_end());
        check(&pem).map_err(OrderError::Unusable)?;
        Ok(pem)
    }
}

/// Whether a server can show it.
fn check(pem: &str) -> Result<(), String> {
    let pem = Pem { path: "the reply".into(), bytes: pem.as_bytes().into() };
    usable(pem).map(drop)
}

fn name_of(authorization: &AuthorizationHandle<'_>) -> String {
    authorization.identifier().to_string().to_ascii_lowercase()
}

/// What the authority says of the first proof that has failed, if one has.
async fn unproven(order: &mut Order) -> Option<OrderError> {
    let mut all = order.authorizations();
    while let Some(Ok(mut authorization)) = all.next().await {
        if authorization.refresh().await.is_err() {
            continue;
        }
        let failed = authorization.challenges.iter().find_map(|one| one.error.as_ref());
        if let Some(problem) = failed {
            return Some(OrderError::Unproven {
                name: name_of(&authorization),
                why: text(problem),
            });
        }
    }
    None
}
