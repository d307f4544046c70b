-- Requests for ingestion by SQL: run this once in a source's PostgreSQL (13 or newer), as its superuser; it may run
-- again. All or nothing: what somebody else has made in its schema is refused. Then:
--     GRANT replicator_producer TO crm_producer;   -- who may request
--     GRANT replicator_taker TO replicator;        -- the user of [ingestion.sources]
--     SELECT replicator.request_ingestion('crm', 'public', 'orders');
--     SELECT * FROM replicator.my_requests;

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;

-- A table of somebody else has defaults and triggers of theirs, which the function would run with its owner's rights.
DO $$
DECLARE
    foreign_one text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'replicator') THEN
        CREATE SCHEMA replicator;
    END IF;
    SELECT format('%s, of %I', what, pg_get_userbyid(owner)) INTO foreign_one FROM (
        SELECT 'schema replicator' AS what, nspowner AS owner FROM pg_namespace WHERE nspname = 'replicator'
        UNION ALL SELECT format('relation replicator.%I', relname), relowner FROM pg_class
            WHERE relnamespace = 'replicator'::regnamespace
        UNION ALL SELECT format('function replicator.%I', proname), proowner FROM pg_proc
            WHERE pronamespace = 'replicator'::regnamespace
    ) AS found WHERE pg_get_userbyid(owner) <> current_user LIMIT 1;
    IF foreign_one IS NOT NULL THEN
        RAISE EXCEPTION '% exists already', foreign_one
            USING HINT = 'Run this as the user who ran it before; inspect and drop objects of another user.';
    END IF;
END
$$;

DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['replicator_producer', 'replicator_taker'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted) THEN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', wanted);
        END IF;
    END LOOP;
END
$$;

REVOKE ALL ON SCHEMA replicator FROM PUBLIC;
GRANT USAGE ON SCHEMA replicator TO replicator_producer, replicator_taker;

CREATE TABLE IF NOT EXISTS replicator.request (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
    requested_by text NOT NULL,
    groups text[] NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT pg_catalog.now(),
    request jsonb NOT NULL,
    state text NOT NULL DEFAULT 'new' CHECK (state IN ('new', 'queued', 'refused')),
    job bigint,
    answer text,
    answered_at timestamptz
);
ALTER TABLE replicator.request DROP CONSTRAINT IF EXISTS request_short;
ALTER TABLE replicator.request ADD CONSTRAINT request_short
    CHECK (state <> 'new' OR pg_catalog.octet_length(request::text) <= 65536) NOT VALID;  -- older rows get an answer
CREATE INDEX IF NOT EXISTS request_new ON replicator.request (id) WHERE state = 'new';
REVOKE ALL ON replicator.request FROM PUBLIC;
GRANT SELECT, UPDATE (state, job, answer, answered_at) ON replicator.request TO replicator_taker;

-- The functions of earlier releases, which had fewer parameters: two of one name would be ambiguous.
DROP FUNCTION IF EXISTS replicator.request_ingestion(
    text, text, text, text, text, text[], text, integer, text, text, text
);
DROP FUNCTION IF EXISTS replicator.request_ingestion(
    text, text, text, text, text, text[], text, integer, text, text, text, text, double precision
);

-- more: fields of a request that have no parameter, such as '{"columns": ["id"], "where": "id > 100"}'.
-- session_user: who logged in; neither SET ROLE nor this function's own rights change it.
CREATE OR REPLACE FUNCTION replicator.request_ingestion(
    asset text,
    schema_name text,
    table_name text,
    mode text DEFAULT 'overwrite',
    watermark text DEFAULT NULL,
    key text[] DEFAULT '{}',
    split_column text DEFAULT NULL,
    readers integer DEFAULT NULL,
    format text DEFAULT 'parquet',
    schema_policy text DEFAULT 'fail',
    note text DEFAULT '',
    late text DEFAULT NULL,
    max_loss double precision DEFAULT NULL,
    more jsonb DEFAULT '{}'
) RETURNS bigint
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    INSERT INTO replicator.request (requested_by, groups, request)
    VALUES (
        session_user,
        ARRAY(SELECT rolname::text FROM pg_roles WHERE NOT rolsuper AND pg_has_role(session_user, oid, 'member')),
        jsonb_build_object(
            'asset', $1, 'schema', $2, 'table', $3, 'mode', $4, 'watermark', $5, 'key', to_jsonb($6),
            'split', jsonb_build_object('column', $7, 'readers', $8), 'format', $9, 'schema_policy', $10, 'note', $11,
            'late', $12, 'max_loss', $13
        ) || CASE WHEN jsonb_typeof($14) = 'object' THEN $14 ELSE jsonb_build_object('more', $14) END
    )
    RETURNING id
$$;
REVOKE ALL ON FUNCTION replicator.request_ingestion FROM PUBLIC;
GRANT EXECUTE ON FUNCTION replicator.request_ingestion TO replicator_producer;

CREATE OR REPLACE VIEW replicator.my_requests WITH (security_barrier) AS
    SELECT id, requested_at, request, state, job, answer, answered_at
    FROM replicator.request WHERE requested_by = session_user;
REVOKE ALL ON replicator.my_requests FROM PUBLIC;
GRANT SELECT ON replicator.my_requests TO replicator_producer;
COMMIT;
