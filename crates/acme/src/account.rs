//! The account at the authority, kept in a file.

use std::fs;
use std::io;

use instant_acme::{Account, AccountCredentials, ExternalAccountKey, NewAccount};
use serde::{Deserialize, Serialize};

use crate::authority::Authority;
use crate::client::Client;
use crate::error::OrderError;
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
    let kept = match fs::read(&file) {
        Ok(bytes) => Some(serde_json::from_slice::<Kept>(&bytes).map_err(|error| {
            io::Error::other(format!("{} can't be read: {error}", file.display()))
        })?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    let builder = Account::builder_with_http(Box::new(client.clone()));
    let (account, credentials) = match kept {
        Some(Kept { contact: told, account: credentials }) => {
            // Credentials can't be cloned.
            let again = serde_json::to_value(&credentials).and_then(serde_json::from_value);
            let again: AccountCredentials = again.map_err(io::Error::other)?;
            let account = builder.from_credentials(credentials).await?;
            if told == authority.contact {
                return Ok(account);
            }
            account.update_contacts(&contact).await?;
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
    let bytes = serde_json::to_vec_pretty(&kept).map_err(io::Error::other)?;
    folder::write(&file, &bytes)?;
    Ok(account)
}

/// Forgets the account, as the authority does not know it.
pub(crate) fn forget(authority: &Authority) {
    folder::remove(&authority.account_file());
}
