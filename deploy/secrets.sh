#!/bin/sh
# Writes the secret files of docker-compose.yml. Existing files are kept.
set -eu
cd "${1:-$(dirname "$0")/..}"
mkdir -p secrets
# others cannot enter the folder; the files themselves are read by other users of the containers
chmod 700 secrets
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
put() { [ -e "secrets/$1" ] || printf '%s' "$2" > "secrets/$1"; chmod 644 "secrets/$1"; }
put postgres_password "$(random)"
put actograph_database_url "postgresql+psycopg://actograph:$(cat secrets/postgres_password)@postgres:5432/actograph"
put actograph_api_keys "$(random)"
put hf_token ''
put aws_credentials ''
