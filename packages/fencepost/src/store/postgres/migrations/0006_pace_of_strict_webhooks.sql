-- Claims of a strict webhook go by its pace, too: two at the same moment could each take a delivery, where an earlier
-- one was redelivered between them.
INSERT INTO fencepost.webhook_pace (webhook_id)
SELECT id FROM fencepost.webhooks WHERE ordering = 'strict' AND deleted_at IS NULL
ON CONFLICT DO NOTHING;
