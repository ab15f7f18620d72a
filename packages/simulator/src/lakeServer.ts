// Serves a folder over HTTP as a plain web server does, or as S3-compatible storage: objects, HEAD, ListObjectsV2
// and request signatures of version 4. Nothing can be written.
import { createHash, createHmac } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { join } from "node:path";
import { listen } from "./listen.ts";

export interface LakeServerOptions {
  readonly folder: string;
  /** Speak S3, with this bucket as the first part of the path. Without a key anybody may read. */
  readonly s3?: {
    readonly bucket: string;
    readonly region?: string;
    readonly accessKeyId?: string;
    readonly secretAccessKey?: string;
    /** The most names in one page of a listing; default 1,000. */
    readonly pageSize?: number;
  };
}

/** What is done to a request instead of answering it. */
export type LakeFault =
  | { readonly kind: "status"; readonly status: number; readonly retryAfter?: number }
  /** No answer until the client gives up. */
  | { readonly kind: "hang" }
  /** The connection ends after half of the body. */
  | { readonly kind: "cut" }
  /** A body of this many bytes, without a length. */
  | { readonly kind: "flood"; readonly bytes: number };

export interface LakeRequest {
  readonly method: string;
  /** Of the object, or of the listing's prefix. */
  readonly key: string;
  readonly list: boolean;
}

export interface LakeServer {
  /** `http://127.0.0.1:port`, without the bucket. */
  readonly url: string;
  /** Every request, in order. */
  readonly requests: readonly LakeRequest[];
  /** Called for each request. */
  fault: (request: LakeRequest) => LakeFault | undefined;
  close(): Promise<void>;
}

const MAX_REQUESTS = 100_000;

/** Starts a server on a free port of the loopback interface. */
export async function startLakeServer(options: LakeServerOptions): Promise<LakeServer> {
  const requests: LakeRequest[] = [];
  const server = createServer((request, response) => {
    answer(request, response).catch(() => response.destroy());
  });

  async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? "/", "http://lake");
    const list = url.searchParams.get("list-type") === "2";
    const path = decodeURIComponent(url.pathname).slice(1);
    const bucket = options.s3 ? `${options.s3.bucket}/` : "";
    const key = list ? (url.searchParams.get("prefix") ?? "") : path.slice(bucket.length);
    const seen = { method: request.method ?? "", key, list };
    if (requests.length < MAX_REQUESTS) requests.push(seen);
    const fault = self.fault(seen);
    if (fault?.kind === "hang") return;
    if (fault?.kind === "status") {
      const headers = fault.retryAfter === undefined ? {} : { "retry-after": String(fault.retryAfter) };
      response.writeHead(fault.status, headers).end();
      return;
    }
    if (fault?.kind === "flood") {
      response.writeHead(200);
      await flood(response, fault.bytes);
      return;
    }
    if (!`${path}/`.startsWith(bucket)) return notFound(response, "NoSuchBucket");
    if (!isSigned(request, url, options)) {
      response.writeHead(403, { "content-type": "application/xml" });
      response.end(
        `<Error><Code>SignatureDoesNotMatch</Code><Message>Not signed by the key.</Message></Error>`,
      );
      return;
    }
    if (list && options.s3) {
      response.writeHead(200, { "content-type": "application/xml" });
      response.end(await listing(options.folder, url.searchParams, options.s3.pageSize ?? 1_000));
      return;
    }
    const content = key.includes("..") ? null : await readFile(join(options.folder, key)).catch(() => null);
    if (!content) return notFound(response, "NoSuchKey");
    response.writeHead(200, { "content-length": content.length });
    if (request.method === "HEAD") response.end();
    else if (fault?.kind === "cut") {
      response.write(content.subarray(0, content.length >> 1), () => response.socket?.resetAndDestroy());
    } else response.end(content);
  }

  const { port, close } = await listen(server);
  const self: LakeServer = {
    url: `http://127.0.0.1:${port}`,
    requests,
    fault: () => undefined,
    close,
  };
  return self;
}

function notFound(response: ServerResponse, code: string): void {
  response.writeHead(404, { "content-type": "application/xml" });
  response.end(`<Error><Code>${code}</Code><Message>There is none.</Message></Error>`);
}

async function flood(response: ServerResponse, bytes: number): Promise<void> {
  const chunk = Buffer.alloc(64 * 1024);
  for (let sent = 0; sent < bytes && !response.destroyed; sent += chunk.length) {
    if (!response.write(chunk)) {
      await new Promise<void>((resolve) => {
        const goOn = (): void => {
          response.off("drain", goOn).off("close", goOn);
          resolve();
        };
        response.on("drain", goOn).on("close", goOn);
      });
    }
  }
  response.end();
}

/** One page of ListObjectsV2; its continuation token is the last name of the page before. */
async function listing(folder: string, query: URLSearchParams, pageSize: number): Promise<string> {
  const prefix = query.get("prefix") ?? "";
  const delimiter = query.get("delimiter") ?? "";
  const after = query.get("continuation-token") ?? query.get("start-after") ?? "";
  const most = Math.min(Number(query.get("max-keys") ?? 1_000), pageSize);
  const files = await readdir(folder, { recursive: true, withFileTypes: true });
  const names = new Set<string>();
  for (const file of files) {
    if (!file.isFile()) continue;
    const key = join(file.parentPath, file.name).slice(folder.length + 1);
    if (!key.startsWith(prefix)) continue;
    const end = delimiter === "" ? -1 : key.indexOf(delimiter, prefix.length);
    names.add(end < 0 ? key : key.slice(0, end + 1));
  }
  const rest = [...names].sort().filter((name) => name > after);
  const page = rest.slice(0, most);
  const truncated = rest.length > page.length;
  const entries = page.map((name) =>
    delimiter !== "" && name.endsWith(delimiter)
      ? `<CommonPrefixes><Prefix>${name}</Prefix></CommonPrefixes>`
      : `<Contents><Key>${name}</Key><Size>1</Size></Contents>`,
  );
  const token = truncated ? `<NextContinuationToken>${page.at(-1)}</NextContinuationToken>` : "";
  return `<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult><Prefix>${prefix}</Prefix><KeyCount>${page.length}</KeyCount><IsTruncated>${truncated}</IsTruncated>${token}${entries.join("")}</ListBucketResult>`;
}

/** Whether a request carries the AWS signature (version 4) of the key; always where no key is set. */
function isSigned(request: IncomingMessage, url: URL, { s3 }: LakeServerOptions): boolean {
  if (!s3?.accessKeyId) return true;
  const { accessKeyId, secretAccessKey = "", region = "us-east-1" } = s3;
  const match =
    /^AWS4-HMAC-SHA256 Credential=([^/]+)\/(\d{8})\/([^/]+)\/s3\/aws4_request, SignedHeaders=([^,]+), Signature=([0-9a-f]{64})$/.exec(
      request.headers.authorization ?? "",
    );
  if (!match || match[1] !== accessKeyId || match[3] !== region) return false;
  const [, , day = "", , signedHeaders = "", signature] = match;
  const headers = signedHeaders.split(";").map((name) => `${name}:${request.headers[name]}\n`);
  const query = [...url.searchParams]
    .map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(value)}`)
    .sort();
  const canonical = [
    request.method,
    url.pathname,
    query.join("&"),
    headers.join(""),
    signedHeaders,
    request.headers["x-amz-content-sha256"],
  ].join("\n");
  const scope = `${day}/${region}/s3/aws4_request`;
  const digest = createHash("sha256").update(canonical).digest("hex");
  const text = ["AWS4-HMAC-SHA256", request.headers["x-amz-date"], scope, digest].join("\n");
  const key = [day, region, "s3", "aws4_request"].reduce<string | Buffer>(
    (secret, part) => createHmac("sha256", secret).update(part).digest(),
    `AWS4${secretAccessKey}`,
  );
  return createHmac("sha256", key).update(text).digest("hex") === signature;
}
