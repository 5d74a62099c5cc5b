// Runs jobs: takes as many milliseconds as a job's body says, and answers what becomes its result.
//
// A job may come more than once, with the same key: whoever does more than wait looks first whether that key is
// done already. 4xx ends a job as failed, 5xx has it tried again.
export default {
  async fetch(request) {
    const key = request.headers.get("idempotency-key");
    const { account, group, attempt, body } = await request.json();
    console.log(`${key}, group ${group}, attempt ${attempt}`);
    await scheduler.wait(body?.ms ?? 0);
    return Response.json({ ran: `${key} for ${account}` });
  },
};
