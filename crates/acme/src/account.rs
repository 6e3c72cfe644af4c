//! The account at the authority, kept in a file.

use std::fs;
use std::io;

use instant_acme::{Account, AccountCredentials, Error, ExternalAccountKey, NewAccount};
use serde::{Deserialize, Serialize};

use crate::authority::Authority;
use crate::client::Client;
use crate::error::{NO_ACCOUNT, OrderError, UNAUTHORIZED};
use crate::folder;

/// What is in the file.
#[derive(Serialize, Deserialize)]
struct Kept {
    contact: Vec<String>,
    account: AccountCredentials,
}

/// The account, which is created if there is none yet.
pub(crate) async fn of(authority: &Authority, client: &Client) -> Result<Account, OrderError> {
    let file = authority.account_file();
    let contact: Vec<_> = authority.contact.iter().map(String::as_str).collect();
    let failed = |error: io::Error| OrderError::folder(&file, &error);
    let kept = match fs::read(&file) {
        Ok(bytes) => {
            let kept = serde_json::from_slice::<Kept>(&bytes).map_err(io::Error::other);
            Some(kept.map_err(failed)?)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    let builder = Account::builder_with_http(Box::new(client.clone()));
    let (account, credentials) = match kept {
        Some(Kept { contact: told, account: credentials }) => {
            // Credentials can't be cloned.
            let again = serde_json::to_value(&credentials).and_then(serde_json::from_value);
            let again: AccountCredentials = again.map_err(io::Error::other).map_err(failed)?;
            let account = builder.from_credentials(credentials).await?;
            if told == authority.contact {
                return Ok(account);
            }
            if let Err(error) = account.update_contacts(&contact).await {
                return Err(refused(authority, error));
            }
            (account, again)
        }
        None => {
            let new = NewAccount {
                contact: &contact,
                terms_of_service_agreed: true,
                only_return_existing: false,
            };
            let external = authority
                .external_account
                .as_ref()
                .map(|account| ExternalAccountKey::new(account.id.clone(), &account.key));
            builder.create(&new, authority.directory.clone(), external.as_ref()).await?
        }
    };
    let kept = Kept { contact: authority.contact.clone(), account: credentials };
    let bytes = serde_json::to_vec_pretty(&kept).map_err(io::Error::other);
    bytes.and_then(|bytes| folder::write(&file, &bytes)).map_err(failed)?;
    Ok(account)
}

/// Why the authority refuses what an account asks for. An account that it does not know is
/// forgotten, so that the next try makes another.
pub(crate) fn refused(authority: &Authority, error: Error) -> OrderError {
    let kind = match &error {
        Error::Api(problem) => problem.r#type.clone().unwrap_or_default(),
        _ => String::new(),
    };
    let file = authority.account_file();
    match (kind.as_str(), OrderError::from(error)) {
        (NO_ACCOUNT, why) => {
            folder::remove(&file);
            why
        }
        // It may have been closed, which only its owner knows.
        (UNAUTHORIZED, OrderError::Refused(why)) => OrderError::Refused(format!(
            "{why}; the account is in {}, without which another one is made",
            file.display()
        )),
        (_, why) => why,
    }
}
