#!/usr/bin/env bash
# A certificate authority and one certificate each for the scheduler, the workers and the client.
#
#   make-certificates.sh FOLDER [NAME_OR_IP ...]
#
# The further words are names of the scheduler and workers that go into their certificates (Dask
# itself checks the authority only, not names). Repeat the command at any time: what is there and
# good for another 30 days stays as it is, the rest is made. Variables: DAYS (of certificates, 365),
# CA_DAYS (3650).
set -euo pipefail
umask 077

folder=${1:?usage: make-certificates.sh FOLDER [NAME_OR_IP ...]}
shift
days=${DAYS:-365}
ca_days=${CA_DAYS:-3650}
soon=$((30 * 24 * 3600))
mkdir -p "$folder"
cd "$folder"

new_key() {
  openssl ecparam -name prime256v1 -genkey -noout -out "$1"
}

is_current() { # certificate, key: there, of each other, from this authority, good for a while
  [[ -s $1 && -s $2 ]] &&
    openssl x509 -in "$1" -noout -checkend "$soon" >/dev/null &&
    openssl verify -CAfile ca.pem "$1" >/dev/null 2>&1 &&
    [[ $(openssl x509 -in "$1" -noout -pubkey) == $(openssl pkey -in "$2" -pubout) ]]
}

if ! is_current ca.pem ca.key; then
  if [[ -e ca.pem ]]; then
    echo "$folder/ca.pem: expires within 30 days, or its key is gone or another's." >&2
    echo "A new authority makes all certificates void: move $folder away and start afresh." >&2
    exit 1
  fi
  new_key ca.key
  openssl req -x509 -new -key ca.key -sha256 -days "$ca_days" -subj "/CN=sadih cluster authority" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -out ca.pem
  echo "made $folder/ca.pem"
fi

names="DNS:localhost,IP:127.0.0.1"
for name in "$@"; do
  if [[ $name =~ ^[0-9.]+$ || $name == *:* ]]; then names+=",IP:$name"; else names+=",DNS:$name"; fi
done

# The scheduler and workers call each other, so theirs serve at both ends of a connection.
for role in scheduler worker client; do
  if is_current "$role.pem" "$role.key"; then continue; fi
  usage="serverAuth,clientAuth"
  if [[ $role == client ]]; then usage="clientAuth"; fi
  new_key "$role.key"
  openssl req -new -key "$role.key" -subj "/CN=sadih $role" |
    openssl x509 -req -CA ca.pem -CAkey ca.key -CAcreateserial -sha256 -days "$days" \
      -out "$role.pem" -extfile <(
        echo "basicConstraints=critical,CA:FALSE"
        echo "keyUsage=critical,digitalSignature"
        echo "extendedKeyUsage=$usage"
        echo "subjectAltName=$names"
      ) 2>/dev/null
  echo "made $folder/$role.pem"
done
chmod 600 ./*.key
chmod 644 ./*.pem
