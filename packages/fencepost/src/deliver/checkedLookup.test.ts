// The sender and the addresses that names have. There is no name server here: names are resolved by the test.
import { once } from "node:events";
import { createServer, type IncomingMessage } from "node:http";
import { createServer as createTlsServer } from "node:https";
import type { AddressInfo } from "node:net";
import { getCACertificates, setDefaultCACertificates, type TLSSocket } from "node:tls";
import { afterAll, afterEach, describe, expect, it, test } from "vitest";
import { selfSignedCertificate } from "../__tests__/support/selfSignedCertificate.ts";
import { type AddressRuleOptions, readAddressRules } from "../address/addressRules.ts";
import type { Resolve } from "./checkedLookup.ts";
import { createSender, type Sender } from "./httpSender.ts";

const NAME = "hooks.example";
const certificate = selfSignedCertificate(NAME);
const trusted = getCACertificates("default");
setDefaultCACertificates([certificate.cert]);
afterAll(() => setDefaultCACertificates(trusted));

const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

function openSender(rules: AddressRuleOptions, resolve?: Resolve): Sender {
  const sender = createSender({
    timeoutMs: 5_000,
    connectionsPerOrigin: 1,
    addressRules: readAddressRules(rules),
    ...(resolve && { resolve }),
  });
  closing.push(sender.close);
  return sender;
}

/** Gives these addresses, one list for each look-up and the last one for all that follow. Counts the look-ups. */
function resolverOf(...answers: readonly (readonly string[])[]): { resolve: Resolve; names: string[] } {
  const names: string[] = [];
  return {
    names,
    async resolve(hostname) {
      const answer = answers[Math.min(names.length, answers.length - 1)] ?? [];
      names.push(hostname);
      return answer.map((address) => ({ address, family: address.includes(":") ? 6 : 4 }));
    },
  };
}

interface Server {
  readonly port: number;
  readonly requests: IncomingMessage[];
  /** Of every connection, whatever came of it. */
  readonly connections: { readonly localAddress: string | undefined }[];
}

/** Answers 200, or redirects. Each answer ends its connection unless `keepAlive`. */
async function openServer(
  options: { readonly tls?: boolean; readonly keepAlive?: boolean; readonly location?: string } = {},
): Promise<Server> {
  const { tls = false, keepAlive = false, location } = options;
  const requests: IncomingMessage[] = [];
  const server = tls ? createTlsServer(certificate) : createServer();
  server.on("request", (request, response) => {
    requests.push(request);
    if (!keepAlive) response.setHeader("connection", "close");
    response.writeHead(location ? 307 : 200, location ? { location } : {}).end();
  });
  const connections: Server["connections"] = [];
  server.on("connection", ({ localAddress }) => connections.push({ localAddress }));
  await once(server.listen(0, "127.0.0.1"), "listening");
  closing.push(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return { port: (server.address() as AddressInfo).port, requests, connections };
}

const post = (url: string) => ({ url, headers: { "webhook-id": "evt" }, body: Buffer.from("{}") });
const refused = (text: string) => ({
  outcome: "not_sent",
  status: null,
  error: expect.stringContaining(text),
});

describe("the addresses of a name", () => {
  test.each([
    [["10.0.0.1"], `${NAME} (10.0.0.1) is refused by the rule "private": `],
    [["127.0.0.1"], `${NAME} (127.0.0.1) is refused by the rule "loopback": `],
    [["169.254.169.254"], `${NAME} (169.254.169.254) is refused by the rule "linkLocal": `],
    [["::1"], `${NAME} (::1) is refused by the rule "loopback": `],
    [["fd00::1"], `${NAME} (fd00::1) is refused by the rule "uniqueLocal": `],
    [["fe80::1%eth0"], `${NAME} (fe80::1%eth0) is refused by the rule "notAnAddress": `],
    [["::ffff:10.0.0.1"], `${NAME} (::ffff:10.0.0.1) is refused by the rule "private": `],
    [["64:ff9b::a00:1"], `${NAME} (64:ff9b::a00:1) is refused by the rule "rfc6052": `],
    [["8.8.8.8", "10.0.0.1"], `${NAME} (10.0.0.1) is refused by the rule "private": `],
    [["10.0.0.1", "8.8.8.8"], `${NAME} (10.0.0.1) is refused by the rule "private": `],
    [["8.8.8.8", "2606:4700::1111", "::1"], `${NAME} (::1) is refused by the rule "loopback": `],
  ])("%j are refused when one of them is bad", async (addresses, text) => {
    const { resolve, names } = resolverOf(addresses);
    expect(await openSender({}, resolve).send(post(`https://${NAME}/`))).toMatchObject(refused(text));
    expect(names).toEqual([NAME]);
  });

  it("are refused before any connection, also to the good one of them", async () => {
    const server = await openServer({ tls: true });
    const { resolve } = resolverOf(["127.0.0.1", "127.0.0.2"]);
    const sender = openSender({ allowNetworks: ["127.0.0.1/32"] }, resolve);
    const result = await sender.send(post(`https://${NAME}:${server.port}/`));
    expect(result).toMatchObject(refused(`${NAME} (127.0.0.2) is refused by the rule "loopback": `));
    expect(server.connections).toEqual([]);
  });

  it("may be none: nothing was sent", async () => {
    const { resolve } = resolverOf([]);
    const result = await openSender({}, resolve).send(post(`https://${NAME}/`));
    expect(result).toMatchObject(refused(`The name ${NAME} has no address.`));
  });

  it("may be unknown: nothing was sent, and the error of the look-up is told", async () => {
    // A label of more than 63 characters: the real resolver answers without a name server.
    const result = await openSender({}).send(post(`https://${"a".repeat(64)}.example/`));
    expect(result).toMatchObject(refused("ENOTFOUND: getaddrinfo ENOTFOUND "));
  });
});

describe("a connection over TLS", () => {
  it("goes to the address that was checked, under the name in the url", async () => {
    const server = await openServer({ tls: true });
    const { resolve, names } = resolverOf(["127.0.0.1"]);
    const sender = openSender({ allowNetworks: ["127.0.0.0/8"] }, resolve);
    expect(await sender.send(post(`https://${NAME}:${server.port}/hook?a=b`))).toMatchObject({
      outcome: "delivered",
      status: 200,
    });
    const [request] = server.requests;
    expect(request).toMatchObject({ url: "/hook?a=b", headers: { host: `${NAME}:${server.port}` } });
    expect((request!.socket as TLSSocket).servername).toBe(NAME);
    expect(server.connections).toEqual([{ localAddress: "127.0.0.1" }]);
    expect(names).toEqual([NAME]);
  });

  it("needs a certificate for the name, not for the address", async () => {
    const server = await openServer({ tls: true });
    const { resolve } = resolverOf(["127.0.0.1"]);
    const sender = openSender({ allowNetworks: ["127.0.0.0/8"] }, resolve);
    const result = await sender.send(post(`https://other.example:${server.port}/`));
    expect(result).toMatchObject(refused("ERR_TLS_CERT_ALTNAME_INVALID"));
    expect(server.requests).toEqual([]);
  });

  it("is refused when the name has moved to a bad address since the one before", async () => {
    const server = await openServer({ tls: true });
    const { resolve, names } = resolverOf(["127.0.0.1"], ["127.0.0.2"], ["127.0.0.1"]);
    const sender = openSender({ allowNetworks: ["127.0.0.1/32"] }, resolve);
    const send = () => sender.send(post(`https://${NAME}:${server.port}/`));
    // Had the connection made a look-up of its own, the first would have gone to 127.0.0.2, where nobody listens.
    expect(await send()).toMatchObject({ outcome: "delivered" });
    expect(await send()).toMatchObject(refused(`${NAME} (127.0.0.2) is refused by the rule "loopback": `));
    expect(await send()).toMatchObject({ outcome: "delivered" });
    expect(names).toEqual([NAME, NAME, NAME]);
    expect(server.connections.length).toBe(2);
  });

  it("that is open stays with the address that it was checked for", async () => {
    const server = await openServer({ tls: true, keepAlive: true });
    const { resolve, names } = resolverOf(["127.0.0.1"], ["127.0.0.2"]);
    const sender = openSender({ allowNetworks: ["127.0.0.1/32"] }, resolve);
    for (let i = 0; i < 3; i++) {
      const result = await sender.send(post(`https://${NAME}:${server.port}/`));
      expect(result).toMatchObject({ outcome: "delivered" });
    }
    expect(names).toEqual([NAME]);
    expect(server.connections.length).toBe(1);
  });

  test.each(["https://127.0.0.2/", "http://169.254.169.254/latest/meta-data/", `https://${NAME}/again`])(
    "does not follow a redirect to %s",
    async (location) => {
      const server = await openServer({ tls: true, location });
      const { resolve, names } = resolverOf(["127.0.0.1"], ["127.0.0.2"]);
      const sender = openSender({ allowNetworks: ["127.0.0.1/32"] }, resolve);
      const result = await sender.send(post(`https://${NAME}:${server.port}/`));
      expect(result).toMatchObject({ outcome: "rejected", status: 307 });
      expect(server.requests.length).toBe(1);
      expect(names).toEqual([NAME]);
    },
  );
});

describe("an address in place of a name", () => {
  test.each([
    ["https://10.0.0.1/", "10.0.0.1 is refused by the rule "],
    ["https://2130706433/", "127.0.0.1 is refused by the rule "],
    ["https://0x7f.1/", "127.0.0.1 is refused by the rule "],
    ["https://[::1]/", "::1 is refused by the rule "],
    ["https://[::ffff:169.254.169.254]/", "::ffff:a9fe:a9fe is refused by the rule "],
    ["https://localhost/", "localhost (127.0.0.1) is refused by the rule "],
    ["http://hooks.example/", "http://hooks.example is refused by the rule "],
    ["https://user:secret@hooks.example/", "https://hooks.example is refused by the rule "],
  ])("is refused without a look-up: %s", async (url, text) => {
    const { resolve, names } = resolverOf(["8.8.8.8"]);
    expect(await openSender({}, resolve).send(post(url))).toMatchObject(refused(text));
    expect(names).toEqual([]);
  });

  it("is refused though something listens there", async () => {
    const server = await openServer();
    const urls = ["http://127.0.0.1", "https://127.0.0.1", "https://localhost", "https://127.1"];
    for (const url of urls) {
      expect(await openSender({}).send(post(`${url}:${server.port}/`))).toMatchObject({
        outcome: "not_sent",
      });
    }
    expect(server.connections).toEqual([]);
  });
});

describe("development", () => {
  it("delivers over plain http to loopback", async () => {
    const server = await openServer();
    const sender = openSender({ allowInsecure: true });
    for (const host of ["127.0.0.1", "localhost"]) {
      const result = await sender.send(post(`http://${host}:${server.port}/`));
      expect(result).toMatchObject({ outcome: "delivered" });
    }
    expect(server.requests.map(({ headers }) => headers.host)).toEqual([
      `127.0.0.1:${server.port}`,
      `localhost:${server.port}`,
    ]);
  });

  it("refuses every other address that is not public", async () => {
    const { resolve } = resolverOf(["127.0.0.1"], ["127.0.0.1", "192.168.1.2"]);
    const server = await openServer();
    const sender = openSender({ allowInsecure: true }, resolve);
    const send = () => sender.send(post(`http://${NAME}:${server.port}/`));
    expect(await send()).toMatchObject({ outcome: "delivered" });
    expect(await send()).toMatchObject(refused(`${NAME} (192.168.1.2) is refused by the rule "private": `));
    expect(server.requests.map(({ headers }) => headers.host)).toEqual([`${NAME}:${server.port}`]);
  });
});
